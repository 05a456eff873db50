"""`helm test`, a rolling `helm upgrade`, and pods that get a tenth of a core."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from tests.node.lab.folders import ROOT
from tests.node.world import AGENT_NAMESPACE, HUB_NAMESPACE, MANAGED, World, restarts
from tests.support.wait import wait_for

COMPONENTS = ("hub", "beat", "results", "exporter", "flower", "web")
_AGENT = "app=dynamic-scoring-agent"
#: Seconds between two cycles of a pair: an agent that is replaced, one after the other, is away for less.
_INTERVAL = 30


@pytest.fixture(scope="module", autouse=True)
def _judged(world: World) -> Iterator[None]:
    """The windows of this file and those before it: the next one takes another Redis, which has none of the cycles."""
    yield
    world.judge()


def test_helm_test_runs_one_cycle_from_inside(world: World) -> None:
    said = world.helm("test", "--timeout 5m")
    assert "Phase:          Succeeded" in said


@pytest.fixture
def released(tmp_path: Path) -> str:
    """The last chart with a tag, `vX.Y.Z`; before the first one, that of this checkout."""
    last = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0", "--match=v*"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if last.returncode:
        return "deploy/helm"
    made = subprocess.run(
        ["git", "archive", last.stdout.strip(), "deploy/helm"], cwd=ROOT, capture_output=True, check=True
    )
    with tarfile.open(fileobj=BytesIO(made.stdout)) as archive:
        archive.extractall(tmp_path, filter="data")
    return str(tmp_path / "deploy" / "helm")


def test_a_rolling_upgrade_misses_at_most_one_cycle_of_each_pair(world: World, released: str) -> None:
    """Every pod is replaced: of the hub's processes and, through OCM, of the agents; then Redis, on its volume."""
    world.helm("upgrade", released, "--reuse-values", "--wait --timeout 8m")
    world.settle()
    world.dsf("schedule", "set", "sample-scorer", "--interval", str(_INTERVAL))
    world.rescore()
    agents = {name: _uids(world, name) for name in MANAGED}
    rolled = [f"--set-string {part}odAnnotations.rolled=again" for part in ("p", "spokeSetting.agent.p")]
    with world.watch() as watch:
        with watch.window("upgrade", _INTERVAL):
            world.helm("upgrade", "deploy/helm", "--reuse-values", *rolled, "--wait --timeout 8m")
            wait_for(
                lambda: all(not _uids(world, name) & agents[name] for name in MANAGED), 180, "new agents", interval=1
            )
            world.settle()
        with watch.window("Redis", _INTERVAL):
            world.hub.kubectl("-n", HUB_NAMESPACE, "rollout", "restart", "statefulset/dynamic-scoring-redis")
            world.hub.kubectl(
                "-n", HUB_NAMESPACE, "rollout", "status", "statefulset/dynamic-scoring-redis", timeout=180
            )
            world.settle()


def _uids(world: World, cluster: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in world.pods(world.managed[cluster], AGENT_NAMESPACE, _AGENT)}


def test_every_pod_becomes_ready_with_a_tenth_of_a_core(world: World) -> None:
    before = world.revision()
    limits = [f"--set {part}.resources.limits.cpu=100m" for part in (*COMPONENTS, "redis", "spokeSetting.agent")]
    world.helm("upgrade", "deploy/helm", "--reuse-values", *limits, "--wait --timeout 10m")
    try:
        places = [(world.hub, HUB_NAMESPACE), *((one, AGENT_NAMESPACE) for one in world.managed.values())]

        def throttled() -> bool:
            for cluster, namespace in places:
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
