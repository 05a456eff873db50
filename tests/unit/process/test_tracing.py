"""Traces that are disabled or lack their packages, and the ids of a run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dsf.keys import run_member
from dsf.process import tracing
from tests.support.otlpreceiver import Receiver

RUN = run_member("worker01", "sample-scorer", "1718600000000-0123abcd")
_WHERE = "OTEL_EXPORTER_OTLP_ENDPOINT"


def test_each_run_has_one_trace() -> None:
    assert re.fullmatch("[0-9a-f]{32}", tracing.make_trace_id(RUN))
    assert tracing.make_trace_id(RUN) == tracing.make_trace_id(str(RUN))
    assert len({tracing.make_trace_id(RUN[:-1] + digit) for digit in "0123456789abcdef"}) == 16


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({_WHERE: ""}, False),
        ({_WHERE: "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({_WHERE: "http://collector:4318", "OTEL_SDK_DISABLED": "True"}, False),
        ({"OTEL_SERVICE_NAME": "dsf"}, False),
    ],
)
def test_tracing_is_enabled_by_an_endpoint(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: bool
) -> None:
    for name in (_WHERE, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert tracing.is_enabled() is expected


def _run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_disabled_tracing_loads_no_packages_and_adds_no_headers() -> None:
    process = _run(
        "import sys; from dsf.process import tracing\n"
        "tracing.start('agent'); tracing.record_ticks([('a/b/c', 1.0)], 2.0)\n"
        "tracing.record_ingest('a/b/c', 'ok', 1.0, 2.0)\n"
        "with tracing.record_manual_run('explain', 'a/b/c') as trace:\n"
        "    print(repr(trace), tracing.make_headers('a/b/c'))\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    assert process.stdout.splitlines() == ["'' {}", "[]"], process.stderr


def test_without_the_packages_the_process_runs_and_says_what_is_missing() -> None:
    process = _run(
        "import sys; sys.modules['opentelemetry.instrumentation.celery'] = None; from dsf.process import tracing\n"
        "tracing.start('agent'); tracing.record_ingest('a/b/c', 'ok', 1.0, 2.0); print(tracing.make_headers('a/b/c'))",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
    )
    assert process.returncode == 0, process.stderr
    assert "dynamic-scoring-framework[traces]" in process.stdout + process.stderr
    assert process.stdout.splitlines()[-1] == "{}"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    span_receiver = Receiver()
    yield span_receiver
    span_receiver.close()


_SENDS = """
import sys
import requests
from celery import Celery
from dsf.process import tracing

run, url = sys.argv[1:]
tracing.start("beat")
tracing.record_ticks([(run, 1.0)], 2.5)
tracing.record_ingest(run, "error", 3.0, 4.0)
app = Celery("test")
@app.task(name="dsf.fetch")
def fetch():
    return "1 series"
with tracing.record_manual_run("explain", run):
    fetch.apply()
    try:
        requests.get("http://user:hush-1@127.0.0.1:9/x?key=hush-2", timeout=2)
    except requests.RequestException as error:
        assert "hush-2" in str(error)
fetch.apply()
requests.get(url + "/nothing", timeout=300)
print(tracing.make_headers(run)["traceparent"])
"""


def test_spans_of_a_run_form_one_trace_without_secrets(receiver: Receiver) -> None:
    command = [sys.executable, "-c", _SENDS, RUN, receiver.url]
    environment = {_WHERE: receiver.url}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    spans = receiver.list_spans(tracing.make_trace_id(RUN))
    assert len(spans) == len(receiver.spans) == 5, "what belongs to no run has no span"
    assert {service for service, _ in spans} == {"dsf-beat"}
    roots = {span.span_id for _, span in spans if not span.parent_span_id}
    assert len(roots) == 1
    assert process.stdout.strip() == f"00-{tracing.make_trace_id(RUN)}-{roots.pop().hex()}-01"
    by_name = {span.name: span for _, span in spans}
    assert set(by_name) == {"tick", "ingest", "run/dsf.fetch", "GET"}
    assert (by_name["ingest"].start_time_unix_nano, by_name["ingest"].end_time_unix_nano) == (3 * 10**9, 4 * 10**9)
    assert (by_name["ingest"].status.code, by_name["GET"].status.code) == (2, 2)
    attributes = {attribute.key: attribute.value.string_value for attribute in by_name["ingest"].attributes}
    assert attributes == {
        "dsf.cluster": "worker01",
        "dsf.scorer": "sample-scorer",
        "dsf.run": "1718600000000-0123abcd",
        "dsf.outcome": "error",
    }
    assert b"hush" not in receiver.raw


@pytest.mark.parametrize("variable", ["OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=abc", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=-1"])
def test_wrong_value_of_a_tracing_variable_ends_no_process(variable: str) -> None:
    name, _, value = variable.partition("=")
    process = _run(
        "from dsf.process import tracing\ntracing.start('agent')\nprint(tracing.make_headers('a/b/c'))",
        **{name: value, _WHERE: "http://127.0.0.1:9"},
    )
    assert process.stdout.strip().endswith("{}"), process.stderr
    assert "no traces: a variable OTEL_... has a wrong value" in process.stdout + process.stderr
