"""A Prometheus that answers without the data of another one behind it says so, and the agent passes that on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from dsf.agent.metrics import AgentMetrics
from dsf.api.summary import ScorerSummary
from dsf.cli.delivered import ClusterDelivery
from dsf.cli.explaining import run
from dsf.cycle.stages import Cycle, Stages
from dsf.settings import Settings
from dsf.up.stack import http_ready
from tests.integration.cycle.test_stages import NoSecrets
from tests.support.child import Child
from tests.support.httpserver import ScriptedServer, answer
from tests.support.programs import find
from tests.support.redisserver import free_port
from tests.support.wait import wait_for

COUNTER = 'dynamic_scoring_source_warnings_total{score_name="load"}'


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A Prometheus whose store is another server, which is down."""
    port = free_port()
    config = tmp_path / "prometheus.yml"
    config.write_text(f"remote_read:\n- {{url: 'http://127.0.0.1:{free_port()}/read', read_recent: true}}\n")
    command = [
        str(find("prometheus")),
        f"--config.file={config}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
    ]
    child = Child(command, tmp_path / "log")
    try:
        wait_for(http_ready(f"http://127.0.0.1:{port}/-/ready"), 30, child.tail())
        yield f"http://127.0.0.1:{port}"
    finally:
        child.kill()


@pytest.fixture
def summary(url: str) -> Iterator[ScorerSummary]:
    with ScriptedServer(answer({"results": []})) as api:
        yield ScorerSummary(
            name="s",
            score_name="load",
            source_type="Prometheus",
            source_endpoint=f"{url}/api/v1/query_range",
            source_query="up",
            source_range=60,
            source_step=15,
            scoring_endpoint=f"{api.url}/scoring",
            scoring_interval=30,
        )


class _Config:
    """No scorers: what the gauges of scores follow."""

    problem = ""
    loaded_at = 0.0

    def get(self, scorer: str) -> ScorerSummary | None:
        del scorer
        return None

    def summaries(self) -> dict[str, ScorerSummary]:
        return {}


def test_warnings_are_counted_and_logged_now_and_then(
    summary: ScorerSummary, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = AgentMetrics("c", _Config())
    stages = Stages(Settings(), NoSecrets(), observer=metrics)
    for _ in range(3):
        stages.fetch(Cycle("s", "run", summary, math.inf))
    assert f"{COUNTER} 3.0" in generate_latest(metrics.registry).decode().splitlines()
    lines = [line for line in (caplog.text + capsys.readouterr().out).splitlines() if "the source warns" in line]
    assert len(lines) == 1
    assert "remote_read" in lines[0]
    assert "connection refused" in lines[0]


def test_explain_shows_them(summary: ScorerSummary) -> None:
    report = run("c", summary, Settings(), ClusterDelivery("here", {"s": summary}, NoSecrets(), None))
    (query,) = report.queries
    (warning,) = query.warnings
    assert warning.startswith("remote_read: ")
    assert report.outcome == "empty"
