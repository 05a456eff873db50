"""The requests of each source type, with the transport replaced."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from dsf import http
from dsf.api.summary import ScorerSummary
from dsf.api.types import SourceType
from dsf.errors import HttpError
from dsf.http.access import Access
from dsf.sources import SOURCES, FetchContext, find_source
from dsf.sources.base import OTLP, RequestRecord, get_source_type
from dsf.sources.memory import SourceMemory
from dsf.sources.prometheus import _explain
from dsf.sources.registry import start_background_sources
from dsf.sources.window import WindowBudget

ACCESS = Access(secrets=("canary-1",))


class Prometheus:
    """Replaces `dsf.http.get`: records requests and returns responses in turn."""

    def __init__(self, *answers: bytes) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answers = list(answers)

    def __call__(self, url: str, **options: Any) -> bytes:
        options.pop("sink")(self.answers.pop(0))
        self.requests.append({"url": url, **options})
        return b""


def answer(*series: Any) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}}).encode()


def summary(**values: Any) -> ScorerSummary:
    defaults = {"name": "s", "score_name": "s", "source_endpoint": "http://p:9090/api/v1/query_range"}
    return ScorerSummary(**(defaults | values))


def fetch(prometheus: Prometheus, monkeypatch: pytest.MonkeyPatch, context: FetchContext, **values: Any) -> bytes:
    monkeypatch.setattr(http, "get", prometheus)
    payload = find_source("Prometheus")(summary(**values), context)
    body = b"".join(payload.pieces)
    assert payload.size == len(body)
    return body


@pytest.mark.parametrize(
    ("query", "span", "step", "now", "expected"),
    [
        ("up", 3600, 60, 1718603600.9, [("up", 1718599980, 1718603580, 60)]),
        ("up", 100, 30, 1718603610.0, [("up", 1718603520, 1718603610, 30)]),
        ("up", 20, 60, 1718603610.0, [("up", 1718603580, 1718603580, 60)]),
        ("up", 60, 0, 1000.0, [("up", 940, 1000, 0)]),
        ("a;b", 60, 5, 1000.0, [("a", 940, 1000, 5), ("b", 940, 1000, 5)]),
        ("up;", 60, 5, 1000.0, [("up", 940, 1000, 5)]),
        ('a{x=";"} ; b # c;d', 60, 5, 1000.0, [('a{x=";"}', 940, 1000, 5), ("b", 940, 1000, 5)]),
    ],
)
def test_each_query_makes_one_request(
    monkeypatch: pytest.MonkeyPatch, query: str, span: int, step: int, now: float, expected: list[tuple[Any, ...]]
) -> None:
    prometheus = Prometheus(*[answer()] * len(expected))
    context = FetchContext(time.monotonic() + 60, 1000, now, ACCESS)
    body = fetch(prometheus, monkeypatch, context, source_query=query, source_range=span, source_step=step)
    names = ("query", "start", "end", "step")
    assert [tuple(request["params"][name] for name in names) for request in prometheus.requests] == expected
    assert {request["url"] for request in prometheus.requests} == {"http://p:9090/api/v1/query_range"}
    assert all(request["access"] is ACCESS for request in prometheus.requests)
    assert body == b'{"data":[]}'


@pytest.mark.parametrize(("interval", "step", "span"), [(30, 60, 3600), (45, 60, 90), (20, 30, 100), (7, 5, 12)])
def test_cycles_within_a_step_request_the_same_points(
    monkeypatch: pytest.MonkeyPatch, interval: int, step: int, span: int
) -> None:
    moments = [1718603611.5 + cycle * interval for cycle in range(60)]
    prometheus = Prometheus(*[answer()] * len(moments))
    for now in moments:
        context = FetchContext(time.monotonic() + 60, 1000, now, ACCESS)
        fetch(prometheus, monkeypatch, context, source_query="up", source_range=span, source_step=step)
    for now, question in zip(moments, prometheus.requests, strict=True):
        start, end = question["params"]["start"], question["params"]["end"]
        assert (start % step, end % step) == (0, 0)
        assert now - step < end <= now
        assert end - start == span // step * step


@pytest.mark.parametrize(
    ("query", "is_warned"),
    [
        ("sum(rate(requests_total[1m]))", True),
        ("irate(x[30s]) + rate(y[5m])", True),
        ("increase(x[1m30s:15s])", True),
        ("rate(x[2m])", False),
        ("rate(x[5m])", False),
        ("max_over_time(x[1m])", False),
        ('up{job="rate(x[1m])"}', False),
        ("up # rate(x[1m])", False),
    ],
)
def test_empty_rates_over_a_short_window_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, query: str, is_warned: bool
) -> None:
    questions: list[RequestRecord] = []
    context = FetchContext(time.monotonic() + 60, 10_000, 1000.0, observe=questions.append)
    series = {"metric": {}, "values": [[1, "1"]]}
    fetch(Prometheus(answer(), answer(series)), monkeypatch, context, source_query=f"{query}\n; {query}")
    empty, full = questions
    assert (any("use [5m]" in text for text in empty.warnings), list(full.warnings)) == (is_warned, [])


def test_series_stay_in_the_order_of_the_queries_and_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = ({"metric": {"pod": name}, "values": [[1, "1"]]} for name in "abc")
    prometheus = Prometheus(answer(a, b), answer(), answer(c))
    body = fetch(prometheus, monkeypatch, FetchContext(time.monotonic() + 60, 1000, 1000.0), source_query="x;y;z")
    assert json.loads(body) == {"data": [a, b, c]}
    sizes = [len(answer(a, b)), len(answer())]
    assert [request["max_bytes"] for request in prometheus.requests] == [1000, 1000 - sizes[0], 1000 - sum(sizes)]


@pytest.mark.parametrize("query", ["", " ; ", "# nothing"])
def test_missing_query_is_reported(monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    with pytest.raises(HttpError) as caught:
        fetch(Prometheus(), monkeypatch, FetchContext(time.monotonic() + 60, 1000, 1.0), source_query=query)
    assert caught.value.reason == "bad_query"


def test_bad_answer_is_shown_without_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    prometheus = Prometheus(b'{"status":"error","error":"you sent canary-1\\nagain"}')
    with pytest.raises(HttpError) as caught:
        fetch(prometheus, monkeypatch, FetchContext(time.monotonic() + 60, 1000, 1.0, ACCESS), source_query="x")
    assert caught.value.reason == "bad_answer"
    assert str(caught.value) == "GET http://p:9090/api/v1/query_range: error: you sent *** again"


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, b'{"status":"error","errorType":"bad_data","error":"parse error"}', ("bad_query", "parse error")),
        (422, b'{"error":"query timed out"}', ("bad_query", "query timed out")),
        (400, b"<html>proxy</html>", ("bad_query", "<html>proxy</html>")),
        (400, b'{"error":5}', ("bad_query", '{"error":5}')),
        (500, b'{"error":"x"}', None),
    ],
)
def test_prometheus_own_words(status: int, body: bytes, expected: tuple[str, str] | None) -> None:
    for method in ("GET", "POST"):
        assert _explain(status, body, method, 10) == expected


@pytest.mark.parametrize(
    ("method", "status", "body", "length", "expected"),
    [
        (
            "GET",
            414,
            b"<html>414 Request-URI Too Large</html>",
            9000,
            ("bad_query", "set `method: POST` for the source"),
        ),
        ("GET", 431, b"", 70_000, ("bad_query", "a query of 70000 characters")),
        # HAProxy and gunicorn use other texts for the same refusal.
        ("GET", 400, b"<html><h1>400 Bad request</h1>", 9000, ("bad_query", "set `method: POST` for the source")),
        ("GET", 400, b'{"status":"error","error":"parse error"}', 9000, ("bad_query", "parse error")),
        ("GET", 405, b"", 10, None),
        ("POST", 414, b"", 9000, None),
        ("POST", 400, b"<html>", 9000, ("bad_query", "<html>")),
        ("POST", 405, b"", 10, ("http_error", "remove `method: POST`")),
    ],
)
def test_refusal_of_a_method_explains_the_setting(
    method: str, status: int, body: bytes, length: int, expected: tuple[str, str] | None
) -> None:
    explained = _explain(status, body, method, length)
    assert (explained is None) == (expected is None)
    if explained is not None and expected is not None:
        assert explained[0] == expected[0]
        assert expected[1] in explained[1]


def test_source_type_none_sends_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "get", Prometheus())
    payload = find_source("None")(summary(), FetchContext(0.0, 0, 0.0))
    assert b"".join(payload.pieces) == b'{"data":[]}'
    assert (payload.series, payload.received) == (0, 0)


def test_source_table_contains_only_types_of_the_api() -> None:
    assert set(SOURCES) <= set(SourceType)


@pytest.mark.parametrize("kind", ["Prometheus", "OpenTelemetry"])
def test_invalid_address_affects_only_its_scorer(kind: str) -> None:
    bad = summary(source_type=kind, source_endpoint="http://[fd00:1:2]:9090/api/v1/query_range")
    assert get_source_type(bad) != OTLP
    start_background_sources({"s": bad}, SourceMemory(WindowBudget(1, 1), dict))


@pytest.mark.parametrize(
    ("address", "is_pushed"),
    [
        ("http://collector:4318/v1/metrics", True),
        ("http://collector:4318/v1/metrics/?a=b", True),
        ("/v1/metrics", True),
        ("//agent/v1/metrics", True),
        ("http://collector/prefix/v1/metrics", False),
        ("http://collector/v1/metrics/more", False),
        ("", False),
    ],
)
def test_pushed_type_is_used_for_otlp_addresses(address: str, is_pushed: bool) -> None:
    assert (get_source_type(summary(source_type="OpenTelemetry", source_endpoint=address)) == OTLP) is is_pushed
