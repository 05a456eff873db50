"""Pods that are deleted, containers that are killed, a node that is drained or restarts, an upgrade: scores go on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator

import pytest

from tests.node.lab.cluster import Cluster
from tests.node.watch import Watch
from tests.node.world import AGENT_NAMESPACE, HUB_NAMESPACE, InstalledQuickstart, restarts
from tests.support.wait import wait_for

COMPONENTS = ("redis", "hub", "flower")
AGENT = "app=dynamic-scoring-agent"
#: A user's override of the schedule in seconds, which must survive everything here.
OVERRIDE = 29


def _list_places(world: InstalledQuickstart) -> dict[str, tuple[Cluster, str, str]]:
    selectors = {name: (world.hub, HUB_NAMESPACE, f"app.kubernetes.io/component={name}") for name in COMPONENTS}
    return selectors | {"agent": (world.managed["cluster1"], AGENT_NAMESPACE, AGENT)}


@pytest.fixture(scope="module")
def watch(world: InstalledQuickstart) -> Iterator[Watch]:
    world.dsf("schedule", "set", "sample-scorer", "--interval", str(OVERRIDE))
    with world.watch() as watch:
        yield watch


@pytest.fixture(autouse=True)
def _afterwards(world: InstalledQuickstart, watch: Watch, request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test every pod is ready, cycles succeed, at most one was missed, and the override is unchanged."""
    # A node without power is down for longer, and cycles that the test requests meanwhile expire and count, too.
    away = request.function is test_node_that_loses_power_recovers
    with contextlib.nullcontext() if away else watch.window(request.node.name, OVERRIDE):
        yield
        for cluster, namespace, selector in _list_places(world).values():
            world.wait_ready(cluster, namespace, selector)
        world.rescore()
    entries = json.loads(world.dsf("schedule", "list", "--output", "json"))
    scorer_entries = [entry for entry in entries["entries"] if entry["scorer"] == "sample-scorer"]
    intervals = {entry["intervalSeconds"] for entry in scorer_entries}
    assert intervals == {OVERRIDE}, entries


@pytest.mark.parametrize("name", [*COMPONENTS, "agent"])
def test_deleted_pod_is_replaced(world: InstalledQuickstart, name: str) -> None:
    cluster, namespace, selector = _list_places(world)[name]
    before = {pod["metadata"]["uid"] for pod in world.wait_ready(cluster, namespace, selector)}
    cluster.kubectl("-n", namespace, "delete", "pod", "-l", selector, timeout=180)
    world.wait_ready(cluster, namespace, selector)
    assert not before & {pod["metadata"]["uid"] for pod in world.pods(cluster, namespace, selector)}


@pytest.mark.usefixtures("own_nodes")
def test_killed_container_is_restarted_and_scoring_goes_on(world: InstalledQuickstart) -> None:
    """Send SIGKILL to the first process of each container at once."""
    before: dict[str, int] = {}
    for cluster, namespace, selector in _list_places(world).values():
        for pod in world.wait_ready(cluster, namespace, selector):
            before |= restarts(pod)
            for status in pod["status"]["containerStatuses"]:
                os.kill(cluster.node.pid(status["containerID"]), signal.SIGKILL)

    def started_again() -> bool:
        now: dict[str, int] = {}
        for cluster, namespace, selector in _list_places(world).values():
            for pod in world.pods(cluster, namespace, selector):
                now |= restarts(pod)
        return all(now.get(name, 0) > count for name, count in before.items())

    wait_for(started_again, 90, "every container started again", interval=1)


def test_drained_node_gets_its_pods_back(world: InstalledQuickstart) -> None:
    cluster = world.managed["cluster1"]
    cluster.kubectl("drain", cluster.name, "--force", "--delete-emptydir-data", "--timeout=120s", timeout=150)
    cluster.kubectl("uncordon", cluster.name)
    world.wait_ready(cluster, AGENT_NAMESPACE, AGENT)
    world.wait_ready(cluster, "monitoring")


@pytest.mark.usefixtures("own_nodes")
def test_node_that_loses_power_recovers(world: InstalledQuickstart) -> None:
    """End kubelet, containerd and all containers at once, and start them again."""
    cluster = world.managed["cluster1"]
    ids = {pod["status"]["containerStatuses"][0]["containerID"] for pod in world.pods(cluster, AGENT_NAMESPACE, AGENT)}
    cluster.node.cut_power()
    cluster.node.start_containerd(clean=False)
    cluster.node.start_kubelet(cluster)

    def node_agent_runs() -> bool:
        pods = world.all_ready(cluster, AGENT_NAMESPACE, AGENT)
        return not ids & {pod["status"]["containerStatuses"][0]["containerID"] for pod in pods}

    wait_for(node_agent_runs, 120, "the agent to run again", interval=1)
    world.wait_ready(cluster, "kube-system")
    world.wait_ready(cluster, "monitoring")
