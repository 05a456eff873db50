"""Traces cycles by OpenTelemetry, with the extra `traces`.

Tracing is enabled if OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set. The SDK reads all other
OTEL_* variables.

A trace is one run. Its root span is beat's tick; below it are the agent's tasks and requests, and the ingest of the
result. The ids of the trace and of its root are hashes of the run. Therefore messages need not contain them, and
`dsf history` can name the trace of any cycle. Work outside of runs, such as polling for messages, has no spans.

`run` is `<cluster>/<scorer>/<run id>` in all functions. Times are unix seconds.
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

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_TICK: Final = "tick"
_NANOSECONDS_PER_SECOND: Final = 1_000_000_000

#: The role of this process, once it exports traces.
_exporting_roles: list[str] = []


def is_enabled() -> bool:
    """True if the environment sets an endpoint for traces."""
    return (
        any(os.environ.get(name) for name in _ENDPOINTS) and os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"
    )


def make_trace_id(run: str) -> str:
    """Return the trace id of a run: 32 hexadecimal digits."""
    return _make_ids(run)[0]


def make_headers(run: str) -> dict[str, str]:
    """Return the message headers that add a task to the run's trace (W3C Trace Context); empty if tracing is off."""
    return {"traceparent": "00-{}-{}-01".format(*_make_ids(run))} if _exporting_roles else {}


def start(role: str) -> None:
    """Start to export the traces of this process, if an endpoint is set. Logs errors."""
    if not is_enabled() or _exporting_roles:
        return
    try:
        _start(role)
    except ImportError as error:
        log.warning("no traces: pip install 'dynamic-scoring-framework[traces]'", missing=error.name)
    except Exception as error:  # noqa: BLE001 (the SDK raises many kinds for a wrong OTEL_ variable)
        log.error("no traces: a variable OTEL_... has a wrong value", error=str(error))
    else:
        _exporting_roles.append(role)


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

    class RunSampler(Sampler):
        """Drops spans outside of runs, and passes other spans to the sampler that OTEL_TRACES_SAMPLER selects."""

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

    class RedactingSpanProcessor(BatchSpanProcessor):
        """Removes error texts and events from spans, because they may contain URLs with credentials."""

        def on_end(self, span: ReadableSpan) -> None:
            span_fields = ("name", "context", "parent", "resource", "attributes", "kind", "start_time", "end_time")
            span_values = {name: getattr(span, name) for name in (*span_fields, "instrumentation_scope")}
            super().on_end(ReadableSpan(**span_values, status=trace.Status(span.status.status_code)))

    resource_attributes = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": f"dsf-{role}"}
    provider = TracerProvider(resource=Resource.create(resource_attributes))
    provider.sampler = RunSampler(provider.sampler)
    provider.add_span_processor(RedactingSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    celery: Any = CeleryInstrumentor
    celery().instrument()
    RedisInstrumentor().instrument()
    RequestsInstrumentor().instrument(request_hook=_drop_secrets)


def record_ticks(runs: Sequence[tuple[str, float]], now: float) -> None:
    """Record the root spans of ticks that were sent at `now`. `runs` contains each run with its due time."""
    for run, due_at in runs if _exporting_roles else ():
        _make_root(run, due_at).end(round(max(due_at, now) * _NANOSECONDS_PER_SECOND))


@contextlib.contextmanager
def record_manual_run(role: str, run: str) -> Iterator[str]:
    """Record the root span of a run that a user started. Yields the trace id, which is empty if tracing is off."""
    start(role)
    if not _exporting_roles:
        yield ""
        return
    from opentelemetry import trace

    with trace.use_span(_make_root(run, time.time()), end_on_exit=True):
        yield make_trace_id(run)


def record_ingest(run: str, outcome: str, started_at: float, ended_at: float) -> None:
    """Record the span of the ingest of a result."""
    if not _exporting_roles:
        return
    from opentelemetry import propagate, trace

    tracer, parent = trace.get_tracer(__name__), propagate.extract(make_headers(run))
    attributes = {**_make_attributes(run), "dsf.outcome": outcome}
    start_time = round(started_at * _NANOSECONDS_PER_SECOND)
    span = tracer.start_span("ingest", parent, start_time=start_time, attributes=attributes)
    if outcome == "error":
        span.set_status(trace.Status(trace.StatusCode.ERROR))
    span.end(round(ended_at * _NANOSECONDS_PER_SECOND))


def _make_root(run: str, started_at: float) -> Span:
    """Return the root span of a run, which the caller ends."""
    from opentelemetry import trace

    tracer: Any = trace.get_tracer(__name__)
    tracer.id_generator = _RunIds(*_make_ids(run))
    span: Span = tracer.start_span(
        _TICK, start_time=round(started_at * _NANOSECONDS_PER_SECOND), attributes=_make_attributes(run)
    )
    return span


class _RunIds:
    """Implementation of the SDK's id generator that returns the ids of one run."""

    def __init__(self, trace_id: str, span_id: str) -> None:
        self.generate_trace_id = lambda: int(trace_id, 16)
        self.generate_span_id = lambda: int(span_id, 16)
        self.is_trace_id_random = lambda: True


def _make_ids(run: str) -> tuple[str, str]:
    """Return the ids of the run's trace and of its root span as hexadecimal digits."""
    digits = hashlib.sha256(run.encode()).hexdigest()
    return digits[:32], digits[32:48]


def _make_attributes(run: str) -> dict[str, str]:
    return dict(zip(("dsf.cluster", "dsf.scorer", "dsf.run"), run.split("/"), strict=True))


def _drop_secrets(span: Span, request: Any) -> None:
    # Remove user information and query parameters from the URL, because they may be credentials.
    parts = urlsplit(request.url)
    url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    for name in ("http.url", "url.full"):
        span.set_attribute(name, url)
