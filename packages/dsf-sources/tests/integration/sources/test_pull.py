"""A collector's Prometheus exporter, played by a real HTTP server that serves its format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dsf.errors import HttpError
from dsf.http.access import make_bearer_access
from tests.support.httpserver import Exchange, ScriptedServer, answer
from tests.support.sourcefetch import ask, memory, summary

#: As the exporter of a collector with resource_to_telemetry_conversion writes it.
PAGE = """\
# HELP system_memory_usage_bytes Bytes of memory in use.
# TYPE system_memory_usage_bytes gauge
system_memory_usage_bytes{k8s_node_name="n1",state="free"} %(free)s
system_memory_usage_bytes{k8s_node_name="n1",state="used"} 100
# TYPE http_server_duration_seconds histogram
http_server_duration_seconds_bucket{le="0.5"} 3
http_server_duration_seconds_bucket{le="+Inf"} 4
http_server_duration_seconds_sum 1.5
http_server_duration_seconds_count 4
# TYPE requests_total counter
requests_total{path="/a b",code="2\\"00"} 17
"""
TEXT = {"Content_Type": "text/plain; version=0.0.4"}


@pytest.fixture
def exporter() -> Iterator[ScriptedServer]:
    with ScriptedServer(answer(PAGE % {"free": 5}, **TEXT)) as server:
        yield server


def otel(server: ScriptedServer, query: str, **values: Any) -> Any:
    return summary("OpenTelemetry", query, source_endpoint=f"{server.url}/metrics", **values)


def test_selected_series_has_short_label_names(exporter: ScriptedServer) -> None:
    scorer = otel(exporter, 'system.memory.usage_bytes{state="free"}')
    assert ask(scorer, memory(scorer), now=1000.7) == [
        {
            "metric": {
                "__name__": "system_memory_usage_bytes",
                "k8s_node_name": "n1",
                "state": "free",
                "node": "n1",
            },
            "values": [[1000, "5"]],
        }
    ]


def test_counters_and_histograms_become_series(exporter: ScriptedServer) -> None:
    scorer = otel(exporter, "http_server_duration_seconds_bucket; requests_total")
    matrix = ask(scorer, memory(scorer))
    assert [series["metric"].get("le", series["metric"].get("code")) for series in matrix] == ["0.5", "+Inf", '2"00']
    assert [series["values"][0][1] for series in matrix] == ["3", "4", "17"]


def test_pulled_samples_fill_the_range(exporter: ScriptedServer) -> None:
    scorer = otel(exporter, 'system_memory_usage_bytes{state="free"}', source_range=60, source_step=30)
    source_memory = memory(scorer)
    for at, free in ((1000, 1), (1030, 2), (1060, 3), (1090, 4)):
        exporter.script(answer(PAGE % {"free": free}, **TEXT))
        (series,) = ask(scorer, source_memory, now=at)
    assert series["values"] == [[1030, "2"], [1060, "3"], [1090, "4"]]
    assert source_memory.budget.series == 1


def test_old_samples_are_dropped(exporter: ScriptedServer) -> None:
    scorer = otel(exporter, "requests_total", source_range=60, source_step=30)
    source_memory = memory(scorer)
    for at in range(1000, 3000, 30):
        ask(scorer, source_memory, now=at)
    # Range and look-back are 360 s: 12 cycles, and the slack of one move.
    assert source_memory.budget.samples <= 12 + 17


def test_failed_cycle_leaves_a_gap(exporter: ScriptedServer) -> None:
    scorer = otel(exporter, "requests_total", source_range=60, source_step=30)
    source_memory = memory(scorer)
    ask(scorer, source_memory, now=1000)
    exporter.script(answer("sorry", 503))
    with pytest.raises(HttpError) as caught:
        ask(scorer, source_memory, now=1030)
    assert (caught.value.reason, caught.value.retryable) == ("http_error", True)
    exporter.script(answer(PAGE % {"free": 1}, **TEXT))
    (series,) = ask(scorer, source_memory, now=1060)
    assert series["values"] == [[1000, "17"], [1060, "17"]]


def test_series_with_oversized_labels_is_left_out(exporter: ScriptedServer) -> None:
    long = "x" * 5000
    exporter.script(answer(f'm{{a="{long}"}} 1\nm{{a="short"}} 2\n', **TEXT))
    scorer = otel(exporter, "m", source_range=60, source_step=30)
    for source_memory in (memory(scorer), None):
        assert [series["metric"]["a"] for series in ask(scorer, source_memory)] == ["short"]


@pytest.mark.parametrize(("length", "fits"), [(110_009, True), (110_010, False)])
def test_range_is_limited_to_the_steps_of_prometheus(exporter: ScriptedServer, length: int, fits: bool) -> None:
    scorer = otel(exporter, "requests_total", source_range=length, source_step=10)
    if fits:
        assert len(ask(scorer, memory(scorer), now=1e9)) == 1
    else:
        with pytest.raises(HttpError, match="more than 11000 points") as caught:
            ask(scorer, memory(scorer), now=1e9)
        assert caught.value.reason == "bad_query"


def test_vanished_series_ends(exporter: ScriptedServer) -> None:
    scorer = otel(exporter, "requests_total", source_range=60, source_step=30)
    source_memory = memory(scorer)
    ask(scorer, source_memory, now=1000)
    exporter.script(answer("other 1\n", **TEXT))
    (series,) = ask(scorer, source_memory, now=1030)
    assert series["values"] == [[1000, "17"]]


def test_sample_timestamps_are_used_if_present(exporter: ScriptedServer) -> None:
    exporter.script(answer("m 7 990000\n", **TEXT))
    scorer = otel(exporter, "m", source_range=20, source_step=10)
    (series,) = ask(scorer, memory(scorer), now=1000)
    assert series["values"] == [[990, "7"], [1000, "7"]]


def test_token_is_sent_and_its_refusal_reported(exporter: ScriptedServer) -> None:
    scorer = otel(exporter, "requests_total")
    ask(scorer, memory(scorer), access=make_bearer_access("t0ken"))
    assert exporter.requests[-1].headers["Authorization"] == "Bearer t0ken"
    exporter.script(answer("no", 403))
    with pytest.raises(HttpError) as caught:
        ask(scorer, memory(scorer), access=make_bearer_access("t0ken"))
    assert caught.value.reason == "unauthorized"


@pytest.mark.parametrize(
    ("query", "reason", "expected_message"),
    [
        ("", "bad_query", "has no query"),
        ("rate(x[1m])", "bad_query", "functions need a Prometheus"),
    ],
)
def test_invalid_query_is_refused_before_a_request(
    exporter: ScriptedServer, query: str, reason: str, expected_message: str
) -> None:
    with pytest.raises(HttpError) as caught:
        ask(otel(exporter, query))
    assert caught.value.reason == reason
    assert expected_message in str(caught.value)
    assert not exporter.requests


def test_malformed_exposition_is_refused(exporter: ScriptedServer) -> None:
    exporter.script(answer("requests_total{ 5\n", **TEXT))
    scorer = otel(exporter, "requests_total")
    with pytest.raises(HttpError) as caught:
        ask(scorer, memory(scorer))
    assert caught.value.reason == "bad_answer"
    assert "not Prometheus' text format" in str(caught.value)


def test_memory_bounds_are_kept_and_reported(exporter: ScriptedServer) -> None:
    scorer = otel(exporter, "system_memory_usage_bytes", source_range=60, source_step=30)
    with pytest.raises(HttpError) as caught:
        ask(scorer, memory(scorer, series=1))
    assert caught.value.reason == "too_large"
    assert "DSF_AGENT_WINDOW_SERIES" in str(caught.value)
    with pytest.raises(HttpError) as caught:
        ask(scorer, memory(scorer), max_bytes=100)
    assert caught.value.reason == "too_large"


def test_history_restarts_after_a_query_change_and_ends_with_its_scorer(exporter: ScriptedServer) -> None:
    times = {"source_range": 60, "source_step": 30}
    scorer = otel(exporter, "requests_total", **times)
    other = otel(exporter, "requests_total", name="other", **times)
    summaries = {"s": scorer, "other": other}
    source_memory = memory(scorer)
    source_memory.summaries = lambda: summaries
    ask(scorer, source_memory, now=1000)
    ask(other, source_memory, now=1000)
    assert source_memory.budget.series == 2
    ask(otel(exporter, "http_server_duration_seconds_sum", **times), source_memory, now=1000)
    assert source_memory.budget.series == 2
    del summaries["other"]
    ask(scorer, source_memory, now=1010)
    assert source_memory.budget.series == 1


def test_pull_without_an_agent_returns_current_samples(exporter: ScriptedServer) -> None:
    (series,) = ask(otel(exporter, "requests_total", source_range=60, source_step=30), now=1000)
    assert series["values"] == [[1000, "17"]]


@pytest.mark.parametrize(
    ("media_type", "page"),
    [
        # Spring Boot, Quarkus, MicroProfile: status 406, 404 or JSON for clients that accept only JSON.
        ("text/plain; version=0.0.4; charset=utf-8", "up 1\n"),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", 'up 1 # {trace_id="a"} 1\n# EOF\n'),
    ],
)
def test_exporters_that_negotiate_serve_their_text_format(media_type: str, page: str) -> None:
    def negotiate(exchange: Exchange) -> None:
        accepted = exchange.request.headers["Accept"]
        # An exporter that prefers JSON sends it to all who take it.
        if media_type.split(";")[0] in accepted and "json" not in accepted:
            exchange.send(page.encode(), Content_Type=media_type)
        else:
            exchange.send(b'{"up":1}', 406)

    with ScriptedServer(negotiate) as server:
        scorer = otel(server, "up")
        (series,) = ask(scorer, memory(scorer), now=1000.0)
    assert series["values"] == [[1000, "1"]]
