"""`helm test`, the upgrade of docs/upgrade.md from the last release, and pods that get a tenth of a core."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node import installation, release
from tests.node.lab.command import say
from tests.node.release import Release
from tests.node.world import AGENT_NAMESPACE, HUB_NAMESPACE, MANAGED, InstalledQuickstart, restarts
from tests.support.wait import wait_for

COMPONENTS = ("hub", "flower")
_AGENT = "app=dynamic-scoring-agent"
#: Seconds between two cycles of a pair, by an override: replacing an agent takes less.
_INTERVAL = 29


@pytest.fixture(scope="module", autouse=True)
def _judged(world: InstalledQuickstart) -> Iterator[None]:
    """Judge the windows of this file and those before it: the next file uses another Redis, without these cycles."""
    yield
    world.judge()


def test_helm_test_runs_one_cycle_inside_the_cluster(world: InstalledQuickstart) -> None:
    output = world.helm("test", "--timeout 5m")
    assert "Phase:          Succeeded" in output


@pytest.fixture
def released(world: InstalledQuickstart, tmp_path: Path) -> Release:
    """The last release on empty clusters, with its own chart, CRDs and images, and the page's scorers."""
    last_release = release.last(tmp_path)
    say(f"upgrade: from {last_release.name}")
    last_release.build(world)
    world.judge()
    installation.uninstall(world)
    installation.forget(world)
    installation.install(world, str(last_release.folder), *last_release.values)
    installation.furnish(world, last_release.hub_image)
    world.settle()
    return last_release


def test_upgrade_from_the_last_release_misses_at_most_one_cycle_of_each_pair(
    world: InstalledQuickstart, released: Release
) -> None:
    """Replace every pod: of the hub's processes and, through OCM, of the agents; then restart Redis, on its volume."""
    assert released.hub_image in _images(world.pods(world.hub, HUB_NAMESPACE))
    world.dsf("schedule", "set", "sample-scorer", "--interval", str(_INTERVAL))
    world.rescore()
    agents = {name: _uids(world, name) for name in MANAGED}
    with world.watch() as watch:
        with watch.window("upgrade", _INTERVAL):
            values = ("--reset-then-reuse-values", *release.OWN_IMAGES)
            world.helm("upgrade", "deploy/helm", *values, "--wait --timeout 8m")
            wait_for(
                lambda: all(not _uids(world, name) & agents[name] for name in MANAGED), 180, "new agents", interval=1
            )
            installation.place_test_pod(world)
            world.settle()
        with watch.window("Redis", _INTERVAL):
            world.hub.kubectl("-n", HUB_NAMESPACE, "rollout", "restart", "statefulset/dynamic-scoring-redis")
            world.hub.kubectl(
                "-n", HUB_NAMESPACE, "rollout", "status", "statefulset/dynamic-scoring-redis", timeout=180
            )
            world.settle()
    namespaces = [
        (world.hub, HUB_NAMESPACE),
        *((managed_cluster, AGENT_NAMESPACE) for managed_cluster in world.managed.values()),
    ]
    old_images = [
        image
        for cluster_and_namespace in namespaces
        for image in _images(world.pods(*cluster_and_namespace))
        if image.endswith(released.image_tag)
    ]
    assert not old_images
    # Overrides and history survive the upgrade.
    entries = json.loads(world.dsf("schedule", "list", "--output", "json"))["entries"]
    assert {entry["intervalSeconds"] for entry in entries if entry["scorer"] == "sample-scorer"} == {_INTERVAL}, entries


def _images(pods: list[dict[str, Any]]) -> set[str]:
    return {container["image"] for pod in pods for container in pod["spec"]["containers"]}


def _uids(world: InstalledQuickstart, cluster: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in world.pods(world.managed[cluster], AGENT_NAMESPACE, _AGENT)}


def test_pods_become_ready_with_a_tenth_of_a_core(world: InstalledQuickstart) -> None:
    before = world.revision()
    limits = [f"--set {part}.resources.limits.cpu=100m" for part in (*COMPONENTS, "redis", "spokeSetting.agent")]
    world.helm("upgrade", "deploy/helm", "--reuse-values", *limits, "--wait --timeout 10m")
    try:
        namespaces = [
            (world.hub, HUB_NAMESPACE),
            *((managed_cluster, AGENT_NAMESPACE) for managed_cluster in world.managed.values()),
        ]

        def throttled() -> bool:
            for cluster, namespace in namespaces:
                selector = _AGENT if namespace == AGENT_NAMESPACE else "app.kubernetes.io/name"
                for pod in world.all_ready(cluster, namespace, selector):
                    (container,) = pod["spec"]["containers"]
                    assert container["resources"]["limits"].get("cpu") == "100m", pod["metadata"]["name"]
                    assert set(restarts(pod).values()) == {0}, restarts(pod)
            return True

        wait_for(throttled, 400, "every pod ready with 100m", interval=2)
        world.rescore()
        assert throttled()
    finally:
        world.helm("rollback", str(before), "--wait --timeout 8m")
        world.settle()
