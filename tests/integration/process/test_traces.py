"""Traces of cycles across beat, agent and results worker, received by a real OTLP/HTTP receiver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsf.keys import run_member
from dsf.process import tracing
from tests.faults.fleet import Fleet, scores
from tests.support.otlpreceiver import Receiver
from tests.support.wait import wait_for
from tests.support.webprocess import WebProcess


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    span_receiver = Receiver()
    yield span_receiver
    span_receiver.close()


class Traced(Fleet):
    """Processes that send traces; the first batch follows after a fifth of a second."""

    receiver: Receiver

    def environment(self, name: str) -> dict[str, str]:
        where = {"OTEL_EXPORTER_OTLP_ENDPOINT": self.receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        return super().environment(name) | where


def _trace_of(fleet: Fleet, scorer: str, outcome: str) -> str:
    """Return the trace that `dsf history` names for the newest cycle with this outcome."""

    def newest() -> dict[str, Any] | None:
        cycles = fleet.data("history", scorer, "--cluster", "c1")["cycles"]
        return next((candidate for candidate in cycles if candidate["outcome"] == outcome), None)

    cycle = wait_for(newest, 30, f"a cycle of {scorer} that is {outcome}")
    assert cycle is not None
    assert cycle["trace"] == tracing.make_trace_id(run_member("c1", scorer, cycle["runId"]))
    return str(cycle["trace"])


def _whole(receiver: Receiver, trace: str, outcome: str) -> dict[str, tuple[str, Any]]:
    """Return the spans of a trace by name, once that of its result has arrived.

    Names are unique except those of Redis.
    """

    def is_whole() -> bool:
        names = {span.name for _, span in receiver.list_spans(trace)}
        return {"tick", "run/dsf.cycle", "ingest"} <= names

    wait_for(is_whole, 30, "the spans of beat, agent and results worker")
    spans = {span.name: (service, span) for service, span in receiver.list_spans(trace)}
    attributes = {attribute.key: attribute.value.string_value for attribute in spans["ingest"][1].attributes}
    assert attributes["dsf.outcome"] == outcome
    return spans


def test_cycle_is_one_trace_across_beat_agent_and_results_worker(tmp_path: Path, receiver: Receiver) -> None:
    fleet = Traced(tmp_path)
    fleet.receiver = receiver
    with fleet:
        fleet.scorer("cpu", scores(7.0), query="up", interval=2)
        trace = _trace_of(fleet, "cpu", "ok")
        spans = _whole(receiver, trace, "ok")
        services = {service for service, _ in receiver.list_spans(trace)}
        assert services == {"dsf-beat", "dsf-agent", "dsf-results"}
        root, cycle = spans["tick"][1], spans["run/dsf.cycle"][1]
        assert root.parent_span_id == b""
        assert cycle.parent_span_id == root.span_id == spans["ingest"][1].parent_span_id
        stages = [spans[f"run/dsf.{name}"][1] for name in ("fetch", "score", "publish")]
        assert {stage.parent_span_id for stage in stages} == {cycle.span_id}
        # The requests: to the source below fetch, to the scoring API below score, without parameters.
        requests = {span.parent_span_id: span for _, span in receiver.list_spans(trace) if span.name in ("GET", "POST")}
        assert {stage.span_id for stage in stages[:2]} <= set(requests)
        # A request of another server knows its trace as well.
        source_request = fleet.source.requests[-1]
        assert any(name.lower() == "traceparent" for name in source_request.headers)
        assert b"query=up" not in receiver.raw
        # No span exists outside of a cycle.
        roots = {span.name for _, span in receiver.spans if span.parent_span_id == b""}
        assert roots == {"tick"}


def test_page_exports_no_spans_of_its_visitors(
    receiver: Receiver, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans would contain the query of the URL, and any visitor may send the header."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    with WebProcess(redis_url, tmp_path / "log") as web:
        headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
        assert web.get("/api/v1/summary?secret=sesame", **headers).status_code == 200
        # The exporter sends the remaining spans at the end.
        assert web.terminate() == 0
    assert receiver.spans == []


def test_page_starts_with_the_telemetry_of_fastapi_set(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenTelemetry's operator sets the protocol in all pods; FastAPI refuses it."""
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with WebProcess(redis_url, tmp_path / "log") as web:
        assert web.get("/").status_code == 200
