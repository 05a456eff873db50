"""A real Prometheus behind a real nginx, with the limits that both come with: long queries, and responses that are
incomplete."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple
from unittest.mock import Mock

import pytest
from prometheus_client import generate_latest

from dsf.agent.metrics import AgentMetrics
from dsf.api.summary import ScorerSummary
from dsf.cli.delivery import ClusterDelivery
from dsf.cli.dryrun import run_cycle
from dsf.cycle.stages import Cycle, Stages
from dsf.errors import HttpError
from dsf.settings import Settings
from dsf.up.httpcheck import make_http_check
from tests.integration.cycle.test_stages import NoSecrets
from tests.support.child import Child
from tests.support.httpserver import ScriptedServer, answer
from tests.support.nginx import nginx
from tests.support.programs import find
from tests.support.redisserver import free_port
from tests.support.sourcefetch import ask, summary
from tests.support.wait import wait_for

COUNTER = 'dynamic_scoring_source_warnings_total{ds_score_name="load"}'
#: nginx takes a request line of 8 kB.
LONG = "vector(1)" + " or vector(1)" * 800


class Servers(NamedTuple):
    """URLs of Prometheus, and of the nginx before it."""

    prometheus: str
    nginx: str


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A Prometheus that scrapes nothing, and whose remote store is down. Most queries here need no data."""
    folder = tmp_path_factory.mktemp("servers")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    remote = f"remote_read:\n- {{url: 'http://127.0.0.1:{free_port()}/read', read_recent: true}}\n"
    (folder / "prometheus.yml").write_text(remote)
    options = (f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}")
    command = [str(find("prometheus")), *options, f"--web.listen-address=127.0.0.1:{port}"]
    prometheus = Child(command, folder / "log")
    try:
        wait_for(make_http_check(f"{url}/-/ready"), 60, prometheus.tail())
        with nginx(folder, f"location / {{ proxy_pass {url}; }}") as proxy:
            yield Servers(url, proxy)
    finally:
        prometheus.kill()


def _ask(url: str, query: str, method: str | None = None, path: str = "/api/v1/query_range") -> list[int]:
    """Return the number of samples of each series."""
    scorer_summary = summary(
        "Prometheus", query, source_endpoint=url + path, source_range=60, source_step=15, source_method=method
    )
    return [len(series["values"]) for series in ask(scorer_summary)]


def test_get_and_post_return_the_same_series(servers: Servers) -> None:
    for url in servers:
        assert _ask(url, "vector(1); vector(2)") == _ask(url, "vector(1); vector(2)", "POST") == [5, 5]


def test_query_too_long_for_a_url_suggests_post(servers: Servers) -> None:
    with pytest.raises(HttpError) as caught:
        _ask(servers.nginx, LONG)
    assert (caught.value.reason, caught.value.status, caught.value.retryable) == ("bad_query", 414, False)
    assert f"a query of {len(LONG)} characters" in str(caught.value)
    assert "set `method: POST` for the source" in str(caught.value)
    assert _ask(servers.nginx, LONG, "POST") == _ask(servers.prometheus, LONG) == [5]


def test_post_query_error_shows_the_message_of_prometheus(servers: Servers) -> None:
    with pytest.raises(HttpError, match=r"POST .*/api/v1/query_range: HTTP 400: .*parse error") as caught:
        _ask(servers.nginx, "sum(", "POST")
    assert caught.value.reason == "bad_query"


def test_path_that_refuses_post_suggests_its_removal(servers: Servers) -> None:
    with pytest.raises(HttpError, match=r"remove `method: POST` from the source") as caught:
        _ask(servers.prometheus, "vector(1)", "POST", "/-/healthy")
    assert caught.value.status == 405


@pytest.fixture
def load(servers: Servers) -> Iterator[ScorerSummary]:
    """Return a scorer that queries the other server's data."""
    with ScriptedServer(answer({"results": []})) as api:
        endpoints = {"source_endpoint": f"{servers.prometheus}/api/v1/query_range", "scoring_endpoint": api.url}
        yield summary("Prometheus", "up", name="load", source_range=60, source_step=15, **endpoints)


def test_warnings_are_counted_and_logged_now_and_then(
    load: ScorerSummary, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = AgentMetrics("c", Mock(problem="", loaded_at=0.0, get_summaries=dict))
    stages = Stages(Settings(), NoSecrets(), observer=metrics)
    for _ in range(3):
        stages.fetch(Cycle("load", "run", load, math.inf))
    assert f"{COUNTER} 3.0" in generate_latest(metrics.registry).decode().splitlines()
    lines = [line for line in (caplog.text + capsys.readouterr().out).splitlines() if "the source warns" in line]
    assert len(lines) == 1
    assert "remote_read" in lines[0]
    assert "connection refused" in lines[0]


def test_explain_shows_the_warnings_of_prometheus(load: ScorerSummary) -> None:
    report = run_cycle("c", load, Settings(), ClusterDelivery("here", {"load": load}, NoSecrets(), None))
    (query,) = report.queries
    (warning,) = query.warnings
    assert warning.startswith("remote_read: ")
    assert report.outcome == "empty"
