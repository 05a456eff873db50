"""The mode of the chart is changed by `helm upgrade`, in both directions, under running cycles: on a real API server,
with the processes, Redis and agent of the chart."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.tests.integration.hubcluster import STATEFUL_SETS, HubCluster, Release
from deploy.tests.integration.test_whole import CLUSTER, SCORER, InstalledChart, ScriptedServer, answer
from tests.support import chart
from tests.support.child import run_program
from tests.support.controlplane_fixtures import programs_needed
from tests.support.workagent import work_agent

VALUES: chart.Values = {
    # Port-forwards need a kubelet.
    "redis": {"exposure": {"type": "ClusterIP"}},
    "flower": {"enabled": False},
}
#: Seconds between two cycles, by an override of the schedule.
INTERVAL = 5


@pytest.fixture(scope="module")
def installed(hub: HubCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[InstalledChart, Release]]:
    """The chart with its default mode, one managed cluster, and a scorer."""
    with contextlib.ExitStack() as stack:
        scorer = stack.enter_context(ScriptedServer(answer("ok")))
        scorer.script(answer({"results": [{"metric": {"node": "n1"}, "score": 42.7}]}), path="/scoring")
        session = stack.enter_context(contextlib.closing(hub.plane.session()))
        release = stack.enter_context(hub.release(VALUES))
        world = InstalledChart(hub, session, tmp_path_factory.mktemp("modes"), scorer)
        stack.callback(world.node.stop)
        with programs_needed():
            stack.enter_context(work_agent(CLUSTER, hub.plane, hub.plane))
        world.start_redis()
        world.run("hub")
        world.join()
        yield world, release


def _dsf(world: InstalledChart, *arguments: str) -> Any:
    """Run `dsf` as an operator and return its parsed JSON."""
    password = world.node.folder / "operator"
    with contextlib.closing(world.client("operator")) as client:
        password.write_text(client.connection_pool.connection_kwargs["password"])
    environment = {
        **os.environ,
        "DSF_REDIS_URL": f"rediss://localhost:{world.redis_port}/0",
        "DSF_REDIS_USERNAME": "dsf-operator",
        "DSF_REDIS_PASSWORD_FILE": str(password),
        "DSF_REDIS_CA_FILE": str(world.node.folder / "redis" / "tls" / "ca.crt"),
    }
    process = run_program([sys.executable, "-P", "-m", "dsf.cli", *arguments, "--output", "json"], env=environment)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def _good_runs(world: InstalledChart) -> set[str]:
    """Run ids of the cycles that succeeded, of the last 50."""
    cycles = _dsf(world, "history", SCORER, "--cluster", CLUSTER)["cycles"]
    return {cycle["runId"] for cycle in cycles if cycle["outcome"] == "ok"}


def _redis_generation(world: InstalledChart) -> int:
    path = STATEFUL_SETS.path(chart.NAMESPACE, "dynamic-scoring-redis")
    generation: int = world.session.get(path)["metadata"]["generation"]
    return generation


def test_change_of_mode_loses_no_score_override_or_history(installed: tuple[InstalledChart, Release]) -> None:
    world, release = installed
    world.node.until(lambda: world.score() == [("n1", 42)], "a score", 120)
    _dsf(world, "schedule", "set", SCORER, "--interval", str(INTERVAL))
    world.node.until(lambda: len(_good_runs(world)) >= 2, "cycles", 120)
    running = {"hub"}
    for mode in ("Distributed", "Single"):
        runs, generation = _good_runs(world), _redis_generation(world)
        release.upgrade(VALUES | {"mode": mode})
        assert _redis_generation(world) == generation, "Redis is not restarted"
        # New pods first, then the old ones end, as Helm and Kubernetes do.
        ending = [world.node.pods.pop(name) for name in running]
        running = set(chart.MODES[mode])
        for name in running:
            world.run(name)
        for pod in ending:
            assert pod.child is not None
            pod.child.signal(signal.SIGTERM)
            assert pod.child.wait(120) == 0, pod.child.tail()
        world.node.until(lambda before=runs: _good_runs(world) - before, f"a cycle with mode {mode}", 120)
        for name in running:
            pod = world.node.pods[name]
            world.node.until(lambda pod=pod: pod.passes("readinessProbe"), f"{name} to be ready", 60)
        assert runs & _good_runs(world), "the history goes on"
        assert world.score() == [("n1", 42)]
        entries = _dsf(world, "schedule", "list")["entries"]
        assert {entry["intervalSeconds"] for entry in entries} == {INTERVAL}
