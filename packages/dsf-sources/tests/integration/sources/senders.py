"""Clients that push to an agent's OTLP receiver: the OpenTelemetry SDK's exporter, and handwritten requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.resources import Resource

from dsf.otlp.plugin import PLUGIN, Pushed
from dsf.settings import Settings
from dsf.sources.memory import SourceMemory
from tests.support.sourcefetch import ask, memory, summary

NODE = {"k8s.node.name": "n1", "service.name": "test"}

QUERY = 'system.memory.usage{state="free"}; http.requests; latency_count; latency_bucket{le="5"}; latency_sum'


def pushed(query: str = QUERY, **values: Any) -> Any:
    """Return the summary of a scorer whose metrics are pushed to the agent."""
    endpoint = "http://dynamic-scoring-agent-service:4318/v1/metrics"
    return summary("OpenTelemetry", query, source_endpoint=endpoint, **values)


class Agent:
    """The agent's part that contains the OTLP receiver."""

    def __init__(self, scorer: Any, max_bytes: int = 100_000, token: Path | None = None, **bounds: int) -> None:
        self.scorer = scorer
        self.known = {scorer.name: scorer}
        self.memory: SourceMemory = memory(scorer, **bounds)
        self.memory.summaries = lambda: self.known
        self.memory.settings = Settings(otlp_port=0, listen_host="127.0.0.1", client_token_file=token)
        assert PLUGIN.start is not None
        with mock.patch("dsf.otlp.plugin.MAX_BYTES", max_bytes):
            pushed = self.memory.start_once(PLUGIN.start)
        assert isinstance(pushed, Pushed)
        self.received, self.receiver = pushed.received, pushed.receiver
        self.url = f"http://127.0.0.1:{self.receiver.address[1]}/v1/metrics"

    def series(self, **options: Any) -> list[dict[str, Any]]:
        """Return the series that its scorer would get now."""
        return ask(self.scorer, self.memory, **{"now": time.time() + 1, **options})

    def latest(self) -> dict[tuple[str, ...], str]:
        """Return the newest value by name and the labels that tell series apart."""
        apart = ("state", "code", "le")
        return {
            (
                series["metric"]["__name__"],
                *(series["metric"][name] for name in apart if name in series["metric"]),
            ): series["values"][-1][1]
            for series in self.series()
        }


Make = Callable[..., Agent]


class Sdk:
    """An application that measures with the SDK and exports with its OTLP/HTTP exporter."""

    def __init__(self, url: str, *, compression: Compression = Compression.Gzip, **options: Any) -> None:
        views = options.pop("views", [])
        self.exporter = OTLPMetricExporter(endpoint=url, compression=compression, timeout=300, **options)
        self.reader = InMemoryMetricReader(preferred_temporality=options.get("preferred_temporality"))
        self.provider = MeterProvider([self.reader], resource=Resource(NODE), views=views, shutdown_on_exit=False)
        self.meter = self.provider.get_meter("test")

    def export(self) -> MetricExportResult:
        """Push the measured values."""
        data = self.reader.get_metrics_data()
        assert data is not None
        return self.exporter.export(data)

    def close(self) -> None:
        """End its sessions."""
        self.exporter.shutdown()
        self.provider.shutdown()


def gauge(name: str, *values: float, at: float | None = None, **attributes: str) -> pb.Metric:
    """Return a gauge with one point per value, all of one moment (unix seconds, now by default)."""
    metric = pb.Metric(name=name)
    for index, value in enumerate(values):
        point = metric.gauge.data_points.add(as_double=value, time_unix_nano=int((at or time.time()) * 1e9))
        for key, text in {**attributes, "index": str(index)}.items():
            point.attributes.add(key=key).value.string_value = text
    return metric


def request(*metrics: pb.Metric) -> ExportMetricsServiceRequest:
    """Return a request with these metrics."""
    export_request = ExportMetricsServiceRequest()
    export_request.resource_metrics.add().scope_metrics.add().metrics.extend(metrics)
    return export_request


def push(agent: Agent, body: ExportMetricsServiceRequest | bytes, **headers: str) -> requests.Response:
    """Send a request, or any bytes in its place."""
    data = body if isinstance(body, bytes) else body.SerializeToString()
    return requests.post(agent.url, data, headers={"Content-Type": "application/x-protobuf", **headers}, timeout=300)


def partial(response: requests.Response) -> tuple[int, str]:
    """Return the number of rejected points and the words that a response has for them."""
    success = ExportMetricsServiceResponse.FromString(response.content).partial_success
    return success.rejected_data_points, success.error_message
