"""Pushed samples while a request is ingested."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from dsf.api.summary import ScorerSummary
from dsf.otlp.points import TooManyAttributesError
from dsf.otlp.received import MAX_COMPARED_ATTRIBUTES, Received
from dsf.sources.window import WindowBudget
from tests.support.sourcefetch import summary
from tests.support.wait import PATIENCE


def test_agent_does_not_wait_for_a_large_request() -> None:
    is_taking, may_end = threading.Event(), threading.Event()

    def read_summaries() -> Mapping[str, ScorerSummary]:
        if threading.current_thread() is request:
            is_taking.set()
            may_end.wait(PATIENCE)
        return {}

    received = Received(WindowBudget(1, 1), read_summaries)
    request = threading.Thread(target=received.ingest, args=(ExportMetricsServiceRequest(),))
    tidying = threading.Thread(target=received.tidy)
    request.start()
    try:
        assert is_taking.wait(PATIENCE)
        tidying.start()
        tidying.join(5)
        assert not tidying.is_alive()
    finally:
        may_end.set()
        request.join()


def test_attributes_of_all_samples_of_a_request_are_limited() -> None:
    """Each sample is compared with all attributes of its resource, whose number would multiply that of the samples."""
    request = ExportMetricsServiceRequest()
    resource_metrics = request.resource_metrics.add()
    for _ in range(16_000):
        resource_metrics.resource.attributes.add()
    metric = resource_metrics.scope_metrics.add().metrics.add(name="up")
    for _ in range(MAX_COMPARED_ATTRIBUTES // 16_000 + 1):
        metric.gauge.data_points.add(as_int=1)
    scorer = summary("OpenTelemetry", "up", source_endpoint="http://agent:4318/v1/metrics")
    received = Received(WindowBudget(10, 10), lambda: {"s": scorer})
    with pytest.raises(TooManyAttributesError, match="20000000 attributes"):
        received.ingest(request)
    del metric.gauge.data_points[100:]
    received.ingest(request)
