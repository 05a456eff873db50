"""How many messages an OTLP request may have."""

from __future__ import annotations

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from dsf.errors import ProtobufBoundsError
from dsf.otlp import protobufbounds


def make_request(points: int, attributes: int) -> ExportMetricsServiceRequest:
    """Return a request with the smallest points that a sender has reason to send."""
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    for _ in range(points):
        point = metric.gauge.data_points.add(time_unix_nano=1, as_double=1.0)
        for number in range(attributes):
            point.attributes.add(key=f"k{number}").value.bool_value = True
    return request


@pytest.mark.parametrize("attributes", [0, 1, 8])
def test_small_points_are_accepted(attributes: int) -> None:
    protobufbounds.check(make_request(20_000, attributes).SerializeToString())


def test_few_empty_messages_are_accepted() -> None:
    protobufbounds.check(b"\x0a\x00" * 10_000)


def test_empty_messages_are_refused_at_any_depth() -> None:
    request = make_request(1, 1)
    values = request.resource_metrics[0].resource.attributes.add(key="k").value.array_value.values
    values.extend(AnyValue() for _ in range(100_000))
    with pytest.raises(ProtobufBoundsError, match="too many nearly empty parts"):
        protobufbounds.check(request.SerializeToString())


def test_values_that_are_nested_too_deeply_are_refused() -> None:
    request = make_request(1, 1)
    value = request.resource_metrics[0].resource.attributes.add(key="k").value
    for _ in range(60):
        value = value.array_value.values.add()
    with pytest.raises(ProtobufBoundsError, match="nested deeper than 100"):
        protobufbounds.check(request.SerializeToString())


@pytest.mark.parametrize(
    "body", [b"\x0a", b"\x0a\x05\x12", b"\x0a\x02\x12\x05", b"\x0b\x0c", b"\x80" * 11, b"\x0a" + b"\xff" * 10]
)
def test_invalid_requests_are_refused(body: bytes) -> None:
    with pytest.raises(ProtobufBoundsError):
        protobufbounds.check(body)
