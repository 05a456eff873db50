"""Traces of cycles by OpenTelemetry, with the extra `traces`; on where OTEL_EXPORTER_OTLP_ENDPOINT (or that of traces)
says where to send them. All other OTEL_* variables are the SDK's.

A trace is one run: beat's tick is its root, the agent's tasks and requests are below it, and so is what the results
worker does with the result. The ids of trace and root follow from the run, so no message carries them, and `dsf
history` can name the trace of any cycle. Work that belongs to no run, such as looking for messages, has no span.

`run` is `<cluster>/<scorer>/<run id>` everywhere; times are unix seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import dsf.log

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

log = dsf.log.get(__name__)

_WHERE: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_TICK: Final = "tick"
_NANOSECONDS: Final = 1_000_000_000

#: The processes that send traces of their own; empty if this one does not.
_started: list[str] = []


def is_wanted() -> bool:
    """Return True if the environment sets a destination of traces."""
    return any(os.environ.get(name) for name in _WHERE) and os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"


def trace_id(run: str) -> str:
    """The id of a run's trace: 32 hexadecimal digits."""
    return _ids(run)[0]


def headers(run: str) -> dict[str, str]:
    """Return the headers that make a message's task a part of the run's trace (W3C Trace Context); empty if off."""
    return {"traceparent": "00-{}-{}-01".format(*_ids(run))} if _started else {}


def start(role: str) -> None:
    """Send traces of this process from now on, if that is wanted."""
    if not is_wanted() or _started:
        return
    try:
        _start(role)
    except ImportError as error:
        log.warning("no traces: pip install 'dynamic-scoring-framework[traces]'", missing=error.name)
    else:
        _started.append(role)


def _start(role: str) -> None:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.instrumentation.redis import RedisInstrumentor
    from opentelemetry.instrumentation.requests import RequestsInstrumentor
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

    class OnlyRuns(Sampler):
        """Drops what is below no tick; the rest is for the sampler of OTEL_TRACES_SAMPLER."""

        def __init__(self, sampler: Sampler) -> None:
            self._sampler = sampler

        def should_sample(
            self, parent_context: Context | None, trace_id: int, name: str, *args: Any, **options: Any
        ) -> SamplingResult:
            parent = trace.get_current_span(parent_context).get_span_context()
            if not parent.is_valid and name != _TICK:
                return SamplingResult(Decision.DROP)
            return self._sampler.should_sample(parent_context, trace_id, name, *args, **options)

        def get_description(self) -> str:
            return self._sampler.get_description()

    class WithoutTexts(BatchSpanProcessor):
        """Leaves out the texts of errors: they have URLs, whose parameters may be credentials."""

        def on_end(self, span: ReadableSpan) -> None:
            span_fields = ("name", "context", "parent", "resource", "attributes", "kind", "start_time", "end_time")
            span_values = {name: getattr(span, name) for name in (*span_fields, "instrumentation_scope")}
            super().on_end(ReadableSpan(**span_values, status=trace.Status(span.status.status_code)))

    resource_attributes = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": f"dsf-{role}"}
    provider = TracerProvider(resource=Resource.create(resource_attributes))
    provider.sampler = OnlyRuns(provider.sampler)
    provider.add_span_processor(WithoutTexts(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    celery: Any = CeleryInstrumentor
    celery().instrument()
    RedisInstrumentor().instrument()
    RequestsInstrumentor().instrument(request_hook=_without_secrets)


def ticks_sent(runs: Sequence[tuple[str, float]], now: float) -> None:
    """Record sent ticks: the run, and when it was due."""
    for run, due in runs if _started else ():
        _root(run, due).end(round(max(due, now) * _NANOSECONDS))


@contextlib.contextmanager
def by_hand(role: str, run: str) -> Iterator[str]:
    """Record what is done meanwhile as a trace of its own; gives its id, empty if traces are off."""
    start(role)
    if not _started:
        yield ""
        return
    from opentelemetry import trace

    with trace.use_span(_root(run, time.time()), end_on_exit=True):
        yield trace_id(run)


def ingested(run: str, outcome: str, began: float, ended_at: float) -> None:
    """Record what became of a result."""
    if not _started:
        return
    from opentelemetry import propagate, trace

    tracer, parent = trace.get_tracer(__name__), propagate.extract(headers(run))
    attributes = {**_attributes(run), "dsf.outcome": outcome}
    span = tracer.start_span("ingest", parent, start_time=round(began * _NANOSECONDS), attributes=attributes)
    if outcome == "error":
        span.set_status(trace.Status(trace.StatusCode.ERROR))
    span.end(round(ended_at * _NANOSECONDS))


def _root(run: str, at: float) -> Span:
    from opentelemetry import trace

    tracer: Any = trace.get_tracer(__name__)
    tracer.id_generator = _Given(*_ids(run))
    span: Span = tracer.start_span(_TICK, start_time=round(at * _NANOSECONDS), attributes=_attributes(run))
    return span


class _Given:
    """Generates the ids of one root."""

    def __init__(self, trace: str, span: str) -> None:
        self.generate_trace_id = lambda: int(trace, 16)
        self.generate_span_id = lambda: int(span, 16)
        self.is_trace_id_random = lambda: True


def _ids(run: str) -> tuple[str, str]:
    digits = hashlib.sha256(run.encode()).hexdigest()
    return digits[:32], digits[32:48]


def _attributes(run: str) -> dict[str, str]:
    return dict(zip(("dsf.cluster", "dsf.scorer", "dsf.run"), run.split("/"), strict=True))


def _without_secrets(span: Span, request: Any) -> None:
    parts = urlsplit(request.url)
    plain = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    # Parameters and users of URLs may be credentials.
    for name in ("http.url", "url.full"):
        span.set_attribute(name, plain)
