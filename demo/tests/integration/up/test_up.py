"""`dsf up` on a folder of manifests and a Redis of one's own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dsf.demo.services import ScorerService
from dsf.settings import ENV_PREFIX
from dsf.store.pairs import Pairs
from dsf.up.supervisor import Supervisor
from tests.support import commandline, forked
from tests.support.child import Child
from tests.support.redisserver import SocketRedis, free_port
from tests.support.wait import wait_for

DSF = (sys.executable, "-m", "dsf.cli")
CLUSTER = """\
apiVersion: cluster.open-cluster-management.io/v1
kind: ManagedCluster
metadata: {{name: {name}}}
spec: {{hubAcceptsClient: true}}
"""
OTHERS = """\
apiVersion: dynamic-scoring.open-cluster-management.io/v1alpha1
kind: DynamicScoringConfig
metadata: {{name: dynamic-scoring-config, namespace: open-cluster-management}}
---
apiVersion: dynamic-scoring.open-cluster-management.io/v1alpha1
kind: DynamicScorer
metadata: {{name: static, namespace: open-cluster-management}}
spec:
  description: a table
  configURL: {url}/performance/config
  configSyncMode: Full
  scoreDimensionFormat: ${{app}};${{device}}
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    # Deleted clusters are removed at once.
    demo_variables = {"XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONUNBUFFERED": "1", "DSF_DEPARTURE_GRACE": "0"}
    return variables | demo_variables


@pytest.fixture
def scorer(tmp_path: Path) -> Iterator[ScorerService]:
    supervisor = Supervisor(tmp_path / "scorer", lambda _: None)
    service = ScorerService("static-scorer", free_port())
    supervisor.start(service.program())
    supervisor.wait_ready(30)
    yield service
    supervisor.stop_all()


@pytest.fixture
def manifests(tmp_path: Path, scorer: ScorerService) -> Path:
    folder = tmp_path / "manifests"
    folder.mkdir()
    (folder / "others.yaml").write_text(OTHERS.format(url=scorer.url))
    (folder / "c1.yaml").write_text(CLUSTER.format(name="c1"))
    return folder


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.dsf(["up", *arguments], environment, timeout=300)


@pytest.fixture
def server() -> Iterator[SocketRedis]:
    """A Redis without a port; the embedded one has a port."""
    with SocketRedis() as running:
        yield running


def test_up_runs_one_agent_per_accepted_cluster(
    tmp_path: Path, manifests: Path, environment: dict[str, str], server: SocketRedis
) -> None:
    redis_client = server.client()
    options = ("--backend", "dir", "--manifests", str(manifests), "--redis-url", f"unix://{server.path}", "--no-flower")
    up = Child([*DSF, "up", *options], tmp_path / "up.log", environment, inherit=False)
    try:
        pairs = Pairs(redis_client)
        wait_for(lambda: (score := pairs.read_state("c1", "static").score) and len(score.items) == 6, 40, up.tail())
        (manifests / "c2.yaml").write_text(CLUSTER.format(name="c2"))
        wait_for(lambda: pairs.read_state("c2", "static").score, 40, up.tail())
        (manifests / "c1.yaml").unlink()
        wait_for(lambda: "cluster c1 is gone; ending its agent" in up.tail(), 20)
        wait_for(lambda: _agents(up.pid) == {"c2"}, 10)

        # As in another terminal: it takes the Redis of the stack that runs.
        with contextlib.chdir(manifests):
            status = forked.dsf(["status"], environment)
        assert "static" in status.stdout, status.stdout + status.stderr

        second = run(environment, *options)
        assert second.returncode == 1
        assert "already runs with its state in" in second.stderr

        children = psutil.Process(up.pid).children(recursive=True)
        assert len(children) == 2, "the hub and one agent"
    finally:
        up.signal(signal.SIGINT)
        assert up.wait(120) == 0, up.tail()
    assert all(not child.is_running() for child in children)
    # A foreign Redis is not stopped.
    assert redis_client.ping()


def _agents(pid: int) -> set[str]:
    """Clusters of the agents that this process runs."""
    clusters = set()
    for child in psutil.Process(pid).children():
        try:
            values = child.environ()
        except psutil.Error:
            continue
        if values.get("DSF_ROLE") == "agent":
            clusters.add(values["DSF_CLUSTER"])
    return clusters


@pytest.mark.parametrize("in_file", [False, True])
def test_unreachable_redis_is_reported_without_its_password(
    tmp_path: Path, environment: dict[str, str], *, in_file: bool
) -> None:
    url = "redis://:secret@127.0.0.1:1/0"
    (tmp_path / "url").write_text(f"{url}\n")
    arguments = ("--redis-url-file", str(tmp_path / "url")) if in_file else ("--redis-url", url)
    process = run(environment, "--manifests", str(tmp_path), *arguments)
    assert process.returncode == 1
    assert "cannot use Redis at redis://127.0.0.1:1/0" in process.stderr
    assert "secret" not in process.stderr + process.stdout


@pytest.mark.parametrize(
    ("arguments", "expected_text"),
    [
        (("--manifests", "/nonexistent"), "does not exist"),
        (("--manifests", ".", "--backend", "kube"), "kube"),
        ((), "--manifests"),
        (("--manifests", ".", "--redis-url", "redis://:secret@[y"), "not a URL"),
        (("--manifests", ".", "--redis-url", "redis://u:12#secret@h"), "percent-encoded"),
        (("--manifests", ".", "--redis-url", "redis://h", "--redis-url-file", "/dev/null"), "one of"),
        (("--manifests", ".", "--redis-url-file", "/nonexistent"), "does not exist"),
        (("--manifests", ".", "--redis-url-file", "/dev/null"), "empty"),
        (("--manifests", ".", "--redis-url-file", sys.executable), "not text"),
    ],
)
def test_up_refuses_wrong_usage(arguments: tuple[str, ...], expected_text: str) -> None:
    result = commandline.dsf("up", *arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert expected_text in " ".join(result.stderr.split())
    assert "secret" not in result.stderr


def test_demo_reads_the_same_redis_url_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("redis://:secret@[y")
    for options, expected_text in (((), "not a URL"), (("--redis-url", "redis://h"), "one of")):
        result = commandline.dsf("demo", "--redis-url-file", str(tmp_path / "url"), *options)
        assert result.exit_code == 2
        assert expected_text in " ".join(result.stderr.split())
        assert "secret" not in result.stderr
