"""`helm upgrade` changes the mode of the chart, in both directions, without a loss of data that users see."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.node.world import HUB_NAMESPACE, MANAGED, InstalledQuickstart
from tests.support.wait import wait_for

#: Processes of the hub by mode.
PROCESSES = {"Distributed": {"controller", "beat", "results", "web"}, "Single": {"hub"}}
#: Seconds between two cycles of a pair, by an override of the schedule.
_INTERVAL = 29


@pytest.fixture(autouse=True)
def _interval(world: InstalledQuickstart) -> Iterator[None]:
    """The override, as long as the test runs."""
    world.dsf("schedule", "set", "sample-scorer", "--interval", str(_INTERVAL))
    world.rescore()
    yield
    world.judge()
    world.dsf("schedule", "reset", "sample-scorer")


def test_change_of_mode_loses_no_score_override_or_history(world: InstalledQuickstart) -> None:
    with world.watch() as watch:
        for mode, processes in PROCESSES.items():
            redis, runs = _uids(world, "redis"), {name: _runs(world, name) for name in MANAGED}
            with watch.window(f"mode {mode}", _INTERVAL):
                mode_options = ("--reset-then-reuse-values", f"--set mode={mode}", "--wait --timeout 8m")
                world.helm("upgrade", "deploy/helm", *mode_options)
                wait_for(lambda expected=processes: _components(world) == expected, 180, f"mode {mode}", interval=1)
                world.settle()
            assert _uids(world, "redis") == redis, "Redis was restarted"
            for name in MANAGED:
                assert world.score(name)
                # A history has the last 50 cycles.
                assert runs[name] & _runs(world, name), "the history begins anew"
            entries = json.loads(world.dsf("schedule", "list", "--output", "json"))["entries"]
            assert {entry["intervalSeconds"] for entry in entries if entry["scorer"] == "sample-scorer"} == {_INTERVAL}
            assert "Phase:          Succeeded" in world.helm("test", "--timeout 5m")


def _components(world: InstalledQuickstart) -> set[str]:
    """Return the components that have pods, without Flower, Redis and people's pods."""
    pods = world.pods(world.hub, HUB_NAMESPACE, "app.kubernetes.io/name=dynamic-scoring-framework")
    components = {pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in pods}
    return components - {"flower", "redis", "operator"}


def _uids(world: InstalledQuickstart, component: str) -> set[str]:
    pods = world.pods(world.hub, HUB_NAMESPACE, f"app.kubernetes.io/component={component}")
    return {pod["metadata"]["uid"] for pod in pods}


def _runs(world: InstalledQuickstart, cluster: str) -> set[str]:
    return {cycle["runId"] for cycle in world.history(cluster)["cycles"]}
