"""Redis outside of the chart with TLS and Sentinel, as in deploy/exposure/external-sentinel.yaml: killed servers are
replaced, and scores continue.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node.sentinel import SERVERS, SentinelPods
from tests.node.world import HUB_NAMESPACE, InstalledQuickstart
from tests.support.wait import wait_for

pytestmark = pytest.mark.usefixtures("own_nodes")


@pytest.fixture(scope="module")
def pods(world: InstalledQuickstart) -> Iterator[SentinelPods]:
    sentinel_pods = SentinelPods(world.hub)
    sentinel_pods.start()
    before = world.revision()
    values = ("--reuse-values", "--values deploy/exposure/external-sentinel.yaml")
    try:
        world.helm(
            "upgrade", "deploy/helm", *values, f"--set 'redis.external.url={sentinel_pods.url}'", "--wait --timeout 8m"
        )
        yield sentinel_pods
    finally:
        world.helm("rollback", str(before), "--wait --timeout 8m")
        sentinel_pods.remove()
        world.settle()


def _one_cycle(world: InstalledQuickstart) -> None:
    """From inside, with the chart's own settings: the page's test pod still has those of the bundled Redis."""

    def succeeds() -> bool:
        return "Succeeded" in world.helm("test", "--timeout 5m")

    wait_for(succeeds, 120, "a cycle on every cluster", interval=1)


def test_agents_switch_to_the_sentinel_setup(world: InstalledQuickstart, pods: SentinelPods) -> None:
    _one_cycle(world)
    assert not world.pods(world.hub, HUB_NAMESPACE, "app.kubernetes.io/component=redis")


def test_killed_sentinel_is_replaced(world: InstalledQuickstart, pods: SentinelPods) -> None:
    pods.kill("sentinel-0")
    _one_cycle(world)
    wait_for(lambda: pods.master() == SERVERS["redis-0"], 60, "the Sentinels to agree again", interval=1)


def test_killed_master_is_replaced_by_the_replica(world: InstalledQuickstart, pods: SentinelPods) -> None:
    world.hub.kubectl("-n", HUB_NAMESPACE, "delete", "pod", "redis-0", "--grace-period=0", "--force")
    _one_cycle(world)
    # A different Sentinel may have reported it first.
    master_query = ("sentinel-1", "sentinel", "get-master-addr-by-name", "hub")
    wait_for(lambda: "30391" in pods.ask(*master_query), 60, "this Sentinel to name the other server", interval=1)
