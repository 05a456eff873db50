"""The OTLP receiver, pushed to by the OpenTelemetry SDK's own exporter and by hand."""

from __future__ import annotations

import gzip
import http.client
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource

from dsf.errors import HttpError
from dsf.sources.held import Held
from dsf.sources.otlp import receiver
from dsf.sources.otlp.received import Received
from dsf.sources.otlp.receiver import Receiver
from tests.integration.sources.common import ask, held, summary
from tests.support.wait import wait_for

NODE = {"k8s.node.name": "n1", "service.name": "test"}
QUERY = 'system.memory.usage{state="free"}; http.requests; latency_count; latency_bucket{le="5"}; latency_sum'


def pushed(query: str = QUERY, **values: Any) -> Any:
    endpoint = "http://dynamic-scoring-agent-service:4318/v1/metrics"
    return summary("OpenTelemetry", query, source_endpoint=endpoint, **values)


class Agent:
    """What an agent has of the receiver."""

    def __init__(self, scorer: Any, max_bytes: int = 100_000, token: Path | None = None, **bounds: int) -> None:
        self.scorer = scorer
        self.known = {scorer.name: scorer}
        self.held: Held = held(scorer, **bounds)
        self.received = self.held.received = Received(self.held.budget, lambda: self.known)
        self.receiver = Receiver(self.received, "127.0.0.1", 0, max_bytes=max_bytes, token_file=token)
        self.receiver.start()
        self.url = f"http://127.0.0.1:{self.receiver.port}/v1/metrics"

    def series(self, **options: Any) -> list[dict[str, Any]]:
        return ask(self.scorer, self.held, **{"now": time.time() + 1, **options})

    def latest(self) -> dict[tuple[str, ...], str]:
        """The newest value by name and the labels that tell series apart."""
        apart = ("state", "code", "le")
        return {
            (one["metric"]["__name__"], *(one["metric"][name] for name in apart if name in one["metric"])): one[
                "values"
            ][-1][1]
            for one in self.series()
        }


Make = Callable[..., Agent]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Agent] = []

    def start(scorer: Any = None, **options: Any) -> Agent:
        made.append(Agent(scorer or pushed(), **options))
        return made[-1]

    yield start
    for agent in made:
        agent.receiver.stop()


class Sdk:
    """An application that measures with the SDK and exports with its OTLP/HTTP exporter."""

    def __init__(self, url: str, *, compression: Compression = Compression.Gzip, **options: Any) -> None:
        views = options.pop("views", [])
        self.exporter = OTLPMetricExporter(endpoint=url, compression=compression, timeout=5, **options)
        self.reader = InMemoryMetricReader(preferred_temporality=options.get("preferred_temporality"))
        self.provider = MeterProvider([self.reader], resource=Resource(NODE), views=views, shutdown_on_exit=False)
        self.meter = self.provider.get_meter("test")

    def export(self) -> MetricExportResult:
        """Push what was measured."""
        data = self.reader.get_metrics_data()
        assert data is not None
        return self.exporter.export(data)

    def close(self) -> None:
        """End its sessions."""
        self.exporter.shutdown()
        self.provider.shutdown()


@pytest.fixture
def sdk() -> Iterator[Callable[..., Sdk]]:
    made: list[Sdk] = []

    def start(*args: Any, **options: Any) -> Sdk:
        made.append(Sdk(*args, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.mark.parametrize("compression", [Compression.Gzip, Compression.NoCompression])
def test_the_sdk_pushes_and_the_scorer_gets_a_matrix(
    make: Make, sdk: Callable[..., Sdk], compression: Compression
) -> None:
    agent = make()
    app = sdk(agent.url, compression=compression)
    free = app.meter.create_gauge("system.memory.usage")
    calls = app.meter.create_counter("http.requests")
    latency = app.meter.create_histogram("latency", explicit_bucket_boundaries_advisory=[5.0, 10.0])
    free.set(7, {"state": "free"})
    free.set(9, {"state": "used"})
    calls.add(3, {"code": 200})
    for value in (1.0, 2.0, 7.0, 50.0):
        latency.record(value)
    assert app.export() is MetricExportResult.SUCCESS
    assert agent.latest() == {
        ("system_memory_usage", "free"): "7",
        ("http_requests", "200"): "3",
        ("latency_count",): "4",
        ("latency_bucket", "5"): "2",
        ("latency_sum",): "60",
    }
    first = agent.series()[0]["metric"]
    assert first == {
        "__name__": "system_memory_usage",
        "state": "free",
        "k8s_node_name": "n1",
        "node": "n1",
        "service_name": "test",
    }
    assert agent.received.counts == {"kept": 5, "unwanted": 3}


def test_a_range_of_pushes_and_a_reset(make: Make) -> None:
    agent = make(pushed("requests", source_range=120, source_step=60))
    now = int(time.time())
    for at, total in ((now - 120, 10), (now - 60, 20), (now, 1)):
        assert push(agent, request(gauge("requests", total, at=at))).status_code == 200
    (series,) = agent.series(now=now)
    # The restarted counter is handed on as it is, as Prometheus' raw series are.
    assert series["values"] == [[now - 120, "10"], [now - 60, "20"], [now, "1"]]


def test_delta_and_exponential_are_rejected_in_words_the_rest_is_kept(make: Make, sdk: Callable[..., Sdk]) -> None:
    agent = make(pushed("calls; latency; latency_count; up"))
    delta = {Counter: AggregationTemporality.DELTA, Histogram: AggregationTemporality.CUMULATIVE}
    app = sdk(
        agent.url,
        preferred_temporality=delta,
        views=[View(instrument_name="latency", aggregation=ExponentialBucketHistogramAggregation())],
    )
    app.meter.create_counter("calls").add(1)
    app.meter.create_histogram("latency").record(1.0)
    app.meter.create_gauge("up").set(1)
    # Partial success is a success: what was rejected would be rejected again.
    assert app.export() is MetricExportResult.SUCCESS
    assert agent.latest() == {("up",): "1"}
    assert agent.received.counts == {"delta": 1, "exponential_histogram": 1, "kept": 1}


def gauge(name: str, *values: float, at: float | None = None, **attributes: str) -> pb.Metric:
    metric = pb.Metric(name=name)
    for index, value in enumerate(values):
        point = metric.gauge.data_points.add(as_double=value, time_unix_nano=int((at or time.time()) * 1e9))
        for key, text in {**attributes, "index": str(index)}.items():
            point.attributes.add(key=key).value.string_value = text
    return metric


def request(*metrics: pb.Metric) -> ExportMetricsServiceRequest:
    made = ExportMetricsServiceRequest()
    made.resource_metrics.add().scope_metrics.add().metrics.extend(metrics)
    return made


def push(agent: Agent, body: ExportMetricsServiceRequest | bytes, **headers: str) -> requests.Response:
    data = body if isinstance(body, bytes) else body.SerializeToString()
    return requests.post(agent.url, data, headers={"Content-Type": "application/x-protobuf", **headers}, timeout=10)


def partial(answer: requests.Response) -> tuple[int, str]:
    success = ExportMetricsServiceResponse.FromString(answer.content).partial_success
    return success.rejected_data_points, success.error_message


def test_partial_success_counts_the_senders_points_and_says_why(make: Make) -> None:
    agent = make(pushed("sum; h_bucket; m; future; old; long"))
    delta = pb.Metric(name="sum")
    delta.sum.aggregation_temporality = pb.AGGREGATION_TEMPORALITY_DELTA
    delta.sum.data_points.add(as_int=1)
    delta.sum.data_points.add(as_int=2)
    histogram = pb.Metric(name="h")
    histogram.histogram.data_points.add(bucket_counts=[1, 2], explicit_bounds=[1.0], count=3)
    answer = push(
        agent,
        request(
            delta,
            histogram,
            gauge("m", 1, 2),
            gauge("future", 1, at=time.time() + 1000),
            gauge("old", 1, at=time.time() - 1000),
            gauge("long", 1, text="x" * 5000),
            gauge("nobody_wants_it", 1),
        ),
    )
    assert answer.status_code == 200
    rejected, words = partial(answer)
    assert rejected == 2 + 1 + 1 + 1 + 1
    for part in (
        "sum: delta temporality: prefer cumulative",
        "future: more than 300 s ahead",
        "old: older than",
        "long: the labels of a series have more than 4096 bytes",
    ):
        assert part in words
    assert agent.received.counts["kept"] == 2
    assert agent.received.counts["unwanted"] == 1
    assert partial(push(agent, request(gauge("m", 3)))) == (0, "")


def test_json_with_numbers_as_text_and_unknown_fields(make: Make) -> None:
    agent = make(pushed("requests; s; s_sum"))
    now = str(int(time.time() * 1e9))
    total = {
        "aggregationTemporality": 2,
        "isMonotonic": True,
        "dataPoints": [{"asInt": "42", "timeUnixNano": now, "attributes": [], "new": 1, "exemplars": []}],
    }
    point = {"count": "2", "sum": 3.5, "timeUnixNano": now, "quantileValues": [{"quantile": 0.5, "value": 1.5}]}
    metrics = [{"name": "requests", "sum": total}, {"name": "s", "summary": {"dataPoints": [point]}}]
    attributes = [
        {"key": "flag", "value": {"boolValue": True}},
        {"key": "list", "value": {"arrayValue": {"values": [{"intValue": "1"}, {"doubleValue": 0.5}]}}},
    ]
    document = {"resourceMetrics": [{"resource": {"attributes": attributes}, "scopeMetrics": [{"metrics": metrics}]}]}
    answer = requests.post(agent.url, json=document, timeout=10)
    assert (answer.status_code, answer.json()) == (200, {})
    assert answer.headers["Content-Type"] == "application/json"
    found = {one["metric"]["__name__"]: one for one in agent.series()}
    assert found["requests"]["values"][-1][1] == "42"
    assert found["requests"]["metric"] == {"__name__": "requests", "flag": "true", "list": '[1,"0.5"]'}
    assert (found["s"]["metric"]["quantile"], found["s"]["values"][-1][1]) == ("0.5", "1.5")
    assert found["s_sum"]["values"][-1][1] == "3.5"


def test_a_series_without_a_value_ends(make: Make) -> None:
    agent = make(pushed("m", source_range=60, source_step=30))
    now = int(time.time())
    push(agent, request(gauge("m", 1, at=now - 60)))
    ended = gauge("m", 0, at=now - 30)
    ended.gauge.data_points[0].flags = pb.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
    push(agent, request(ended))
    (series,) = agent.series(now=now)
    assert series["values"] == [[now - 60, "1"]]


def test_the_same_request_again_is_nothing_and_older_ones_are_rejected(make: Make) -> None:
    agent = make(pushed("m"))
    now = time.time()
    again = request(gauge("m", 1, at=now))
    assert partial(push(agent, again)) == partial(push(agent, again)) == (0, "")
    assert agent.held.budget.samples == 1
    rejected, words = partial(push(agent, request(gauge("m", 1, at=now - 5))))
    assert (rejected, "older than a sample" in words) == (1, True)


def test_the_bound_on_memory_is_kept_and_said(make: Make) -> None:
    agent = make(pushed("m"), series=3)
    rejected, words = partial(push(agent, request(gauge("m", 1, 2, 3, 4, 5))))
    assert rejected == 2
    assert "m: this agent holds 3 series already (DSF_AGENT_WINDOW_SERIES)" in words
    assert len(agent.series()) == 3


def test_what_no_scorer_wants_any_more_goes(make: Make) -> None:
    agent = make(pushed('m{index="0"}; n'))
    push(agent, request(gauge("m", 1, 2), gauge("n", 1)))
    assert agent.held.budget.series == 2
    agent.known = {"s": pushed("n")}
    agent.held.tidy()
    assert agent.held.budget.series == 1
    push(agent, request(gauge("m", 1)))
    assert agent.held.budget.series == 1
    assert agent.received.counts["unwanted"] == 2


def test_gzip_bombs_large_bodies_and_lies_are_refused(make: Make) -> None:
    agent = make(max_bytes=10_000)
    bomb = gzip.compress(bytes(10_000_000))
    assert len(bomb) < 10_000
    zipped = {"Content-Encoding": "gzip"}
    assert push(agent, bomb, **zipped).status_code == 413
    assert push(agent, bytes(10_001)).status_code == 413
    assert push(agent, b"not gzip", **zipped).status_code == 400
    assert push(agent, gzip.compress(b"x" * 100)[:-4], **zipped).status_code == 400
    assert push(agent, b"\xff\xff\xff").status_code == 400
    assert push(agent, b"{", **{"Content-Type": "application/json"}).json()["code"] == 3
    assert push(agent, b"", **{"Content-Type": "text/plain"}).status_code == 415
    assert push(agent, b"", **{"Content-Encoding": "br"}).status_code == 415
    assert requests.get(agent.url, timeout=10).status_code == 405
    assert requests.post(agent.url.replace("metrics", "traces"), b"", timeout=10).status_code == 404
    # After all that it still works.
    assert push(agent, request()).status_code == 200


def test_refusals_are_a_status_message(make: Make) -> None:
    from google.rpc.status_pb2 import Status

    answer = push(make(max_bytes=10), bytes(11))
    found = Status.FromString(answer.content)
    assert (found.code, found.message) == (3, "a request may have 10 bytes; send smaller batches")


def test_chunked_bodies(make: Make) -> None:
    agent = make(pushed("m"), max_bytes=1000)
    body = request(gauge("m", 1)).SerializeToString()
    headers = {"Content-Type": "application/x-protobuf"}

    def chunked(*parts: bytes) -> int:
        return requests.post(agent.url, iter(parts), headers=headers, timeout=10).status_code

    assert chunked(body[:5], body[5:]) == 200
    assert len(agent.series()) == 1
    assert chunked(bytes(600), bytes(600)) == 413
    connection = http.client.HTTPConnection("127.0.0.1", agent.receiver.port, timeout=10)
    connection.putrequest("POST", "/v1/metrics")
    connection.putheader("Content-Type", "application/x-protobuf")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders(b"xyz\r\n")
    assert connection.getresponse().status == 400
    connection.close()


def test_a_token_is_wanted_and_rotated(make: Make, tmp_path: Path) -> None:
    token = tmp_path / "token"
    agent = make(token=token)
    assert push(agent, request()).status_code == 503
    token.write_text("first\n")
    assert push(agent, request()).status_code == 401
    assert push(agent, request(), Authorization="Bearer wrong").status_code == 401
    assert push(agent, request(), Authorization="Bearer first").status_code == 200
    token.write_text("second")
    assert push(agent, request(), Authorization="Bearer first").status_code == 401
    assert push(agent, request(), Authorization="Bearer second").status_code == 200


def test_connections_are_kept(make: Make) -> None:
    agent = make(pushed("m"))
    with requests.Session() as session:
        for value in range(3):
            body = request(gauge("m", value)).SerializeToString()
            answer = session.post(agent.url, body, headers={"Content-Type": "application/x-protobuf"}, timeout=10)
            assert answer.status_code == 200
            assert "Connection" not in answer.headers or answer.headers["Connection"] != "close"


def test_without_a_receiver_the_cycle_says_what_to_do() -> None:
    scorer = pushed("m")
    for kept in (None, held(scorer)):
        with pytest.raises(HttpError) as caught:
            ask(scorer, kept)
        assert caught.value.reason == "unsupported_source"
        assert "DSF_OTLP_PORT" in str(caught.value)


def stalled(agent: Agent, length: int = 100) -> http.client.HTTPConnection:
    """A sender that says how much it will send, and sends nothing."""
    connection = http.client.HTTPConnection("127.0.0.1", agent.receiver.port, timeout=10)
    connection.putrequest("POST", "/v1/metrics")
    connection.putheader("Content-Type", "application/x-protobuf")
    connection.putheader("Content-Length", str(length))
    connection.endheaders(b"x")
    return connection


def test_senders_that_stall_keep_others_out_for_a_while_only(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "_WAIT", 0.05)
    monkeypatch.setattr(receiver, "_BODY", 1.5)
    agent = make()
    silent = [stalled(agent) for _ in range(4)]
    try:
        refused = wait_for(lambda: [found for found in [push(agent, request())] if found.status_code == 503], 5)
        assert refused[0].headers["Retry-After"] == "1"
        wait_for(lambda: push(agent, request()).status_code == 200, 10, "the others have their turn")
    finally:
        for connection in silent:
            connection.close()


def test_connections_are_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "_CONNECTIONS", 1)
    agent = make()
    first = stalled(agent)
    with pytest.raises(requests.ConnectionError):
        push(agent, request())
    first.close()
    wait_for(lambda: _is_taken(agent), 5, "the connection is free again")


def _is_taken(agent: Agent) -> bool:
    try:
        return push(agent, request()).status_code == 200
    except requests.ConnectionError:
        return False


def test_a_sender_that_says_nothing_does_not_keep_the_others_out(make: Make) -> None:
    agent = make()
    silent = http.client.HTTPConnection("127.0.0.1", agent.receiver.port, timeout=10)
    silent.connect()
    assert wait_for(lambda: push(agent, request()).status_code == 200, 5)
    silent.close()
