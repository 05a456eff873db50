"""VictoriaMetrics as a source of type Prometheus: the program from Debian's package, queried by the agent's code."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from dsf.errors import HttpError
from dsf.http import transport
from dsf.up.httpcheck import make_http_check
from tests.support.authenticatedquery import SourceAccessHarness
from tests.support.child import Child
from tests.support.fixtures import SettingsFactory
from tests.support.httpserver import Exchange, ScriptedServer
from tests.support.programs import find
from tests.support.redisserver import free_port
from tests.support.sourcefetch import ask, summary
from tests.support.wait import wait_for

#: Seconds between two samples, and how many there are.
STEP, COUNT = 15, 5
#: Step of longer answers, in seconds.
LONG_STEP = 60
#: Newest seconds that VictoriaMetrics hides by default (-search.latencyOffset).
HIDDEN = 30
#: Tenant -> how many series `up` it has.
TENANTS = {"team-a": 1, "team-b": 2}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with two series that end now, and some of tenants."""
    folder = tmp_path_factory.mktemp("victoriametrics")
    port = free_port()
    command = [
        str(find("victoria-metrics")),
        f"-httpListenAddr=127.0.0.1:{port}",
        f"-storageDataPath={folder / 'data'}",
        "-memory.allowedBytes=64MB",
    ]
    child = Child(command, folder / "log")
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(make_http_check(f"{url}/health"), 30, child.tail())
        end = int(time.time())
        series = [('load{pod="a"}', 0.5), ('load{pod="b"}', 10.0)]
        series += [(f'up{{tenant="{name}",pod="{pod}"}}', 1) for name, pods in TENANTS.items() for pod in range(pods)]
        # A gauge with the time of each sample as its value.
        ages = range(0, 70 * LONG_STEP, 5)
        clock = "".join(f"clock {end - age} {(end - age) * 1000}\n" for age in ages)
        requests.post(f"{url}/api/v1/import/prometheus", clock, timeout=300).raise_for_status()
        for name, base in series:
            samples = (f"{name} {base + at} {(end - at * STEP) * 1000}\n" for at in range(COUNT))
            requests.post(f"{url}/api/v1/import/prometheus", "".join(samples), timeout=300).raise_for_status()
        # Imported samples are visible after a flush.
        requests.get(f"{url}/internal/force_flush", timeout=300).raise_for_status()
        yield url
    finally:
        child.kill()


def test_range_query_returns_series_in_order(url: str) -> None:
    scorer = summary(
        "Prometheus",
        "load; sum(load)",
        source_endpoint=f"{url}/api/v1/query_range",
        source_range=STEP * (COUNT - 1),
        source_step=STEP,
    )
    matrix = ask(scorer)
    assert [series["metric"] for series in matrix] == [
        {"__name__": "load", "pod": "a"},
        {"__name__": "load", "pod": "b"},
        {},
    ]
    for series in matrix:
        times = [time for time, _ in series["values"]]
        assert times == sorted(times)
        assert all(isinstance(value, str) for _, value in series["values"])
    newest = [float(series["values"][-1][1]) for series in matrix]
    assert newest[2] == newest[0] + newest[1]


@pytest.mark.parametrize("points", [49, 50, 61])
def test_newest_value_is_at_most_a_step_and_the_hidden_seconds_old(url: str, points: int) -> None:
    """From 50 points on, VictoriaMetrics moves the range of a query to multiples of the step."""
    scorer = summary(
        "Prometheus",
        "clock",
        source_endpoint=f"{url}/api/v1/query_range",
        source_range=LONG_STEP * (points - 1),
        source_step=LONG_STEP,
    )
    now = time.time()
    [series] = ask(scorer, now=now)
    moments = [moment for moment, _ in series["values"]]
    last = int(now) // LONG_STEP * LONG_STEP
    assert moments == [last - LONG_STEP * age for age in reversed(range(points))]
    # The latest sample before a point is up to five seconds old.
    newest = float(series["values"][-1][1])
    assert newest <= last
    assert now - newest <= LONG_STEP + HIDDEN + 6


def test_invalid_query_shows_the_error_of_victoriametrics(url: str) -> None:
    scorer = summary(
        "Prometheus", "sum(load", source_endpoint=f"{url}/api/v1/query_range", source_range=60, source_step=15
    )
    with pytest.raises(HttpError) as caught:
        ask(scorer)
    assert caught.value.reason == "bad_query"
    assert "HTTP 422" in str(caught.value)
    assert "sum(load" in str(caught.value)
    assert "unparsed data" in str(caught.value) or "missing" in str(caught.value)


def test_query_without_series_sends_an_empty_request(url: str) -> None:
    scorer = summary(
        "Prometheus", "nothing_like_it", source_endpoint=f"{url}/api/v1/query_range", source_range=60, source_step=15
    )
    assert ask(scorer) == []


def test_tenants_behind_a_gateway_get_their_own_series(
    url: str, tmp_path: Path, settings_factory: SettingsFactory
) -> None:
    """Debian's package is the server without tenants: the gateway makes a label of every query from the header."""

    def forward(exchange: Exchange) -> None:
        tenant = exchange.request.headers.get("X-Scope-Orgid")
        if tenant is None:
            exchange.send(b"no org id", 401)
            return
        params = {**exchange.request.query, "extra_label": f"tenant={tenant}"}
        response = requests.get(f"{url}{exchange.request.path}", params, timeout=300)
        exchange.send(response.content, response.status_code)

    bed = SourceAccessHarness(tmp_path, settings_factory())
    with ScriptedServer(forward) as gateway:
        for tenant, number in (*TENANTS.items(), ("team-c", 0)):
            assert bed.fetch(gateway.url, {"headers": [{"name": "X-Scope-OrgID", "value": tenant}]}) == number
        failure = bed.failure(gateway.url)
    assert (failure.reason, "no org id" in failure.message) == ("unauthorized", True)
    transport.close()
