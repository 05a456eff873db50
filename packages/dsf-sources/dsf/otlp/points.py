"""OTLP metrics as samples: gauges, cumulative sums and histograms, summaries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE, Metric

from dsf.sources.window import MAX_LABEL_BYTES, format_number

#: Point flag "no recorded value".
_NO_VALUE: Final = 1
#: Suffixes of the metric's name, per kind with more than one sample.
SUFFIXES: Final = {"histogram": ("_bucket", "_count", "_sum"), "summary": ("", "_count", "_sum")}

#: Maximum attributes of a resource or a point. The labels of a series with more have too many characters in any case.
MAX_ATTRIBUTES: Final = 4 * MAX_LABEL_BYTES

Pairs = tuple[tuple[str, str], ...]


class Point(NamedTuple):
    """A sample of a metric, with its labels, time and value."""

    suffix: str
    attributes: Pairs
    #: Label added by the kind of metric: `le` or `quantile`.
    extra: Pairs
    #: Unix nanoseconds; 0 if the sender set none.
    nanoseconds: int
    #: The value; None ends the series.
    value: float | None
    #: True if the sender set neither a value nor the flag for a missing one; `value` is meaningless then.
    lacks_value: bool = False


def find_refusal(metric: Metric, kind: str) -> str:
    """Return why a metric of this kind is refused, a key of `received.REASONS`; empty if it is accepted."""
    if kind == "exponential_histogram":
        return "exponential_histogram"
    if kind in ("sum", "histogram"):
        cumulative = getattr(metric, kind).aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
        return "" if cumulative else "delta"
    return "" if kind in ("gauge", "summary") else "unknown_kind"


def iterate_points(metric: Metric, kind: str) -> Iterator[Point]:
    """Yield the samples of an accepted metric. Sums are unchanged, including resets."""
    data = getattr(metric, kind).data_points
    match kind:
        case "gauge" | "sum":
            for point in data:
                value_kind = point.WhichOneof("value")
                # Without a value, protobuf would return the default 0, which nobody measured.
                value = None if value_kind is None else _get_current_value(point, float(getattr(point, value_kind)))
                lacks_value = value_kind is None and not point.flags & _NO_VALUE
                yield Point("", make_pairs(point.attributes), (), point.time_unix_nano, value, lacks_value)
        case "histogram":
            for point in data:
                yield from _iterate_histogram(point)
        case "summary":
            for point in data:
                attributes = make_pairs(point.attributes)
                for at_quantile in point.quantile_values:
                    quantile = (("quantile", format_number(at_quantile.quantile)),)
                    value = _get_current_value(point, at_quantile.value)
                    yield Point("", attributes, quantile, point.time_unix_nano, value)
                yield from _iterate_count_and_sum(point, attributes)


class TooManyAttributesError(ValueError):
    """A resource, a point, or a whole request has too many attributes."""


def make_pairs(attributes: Sequence[KeyValue]) -> Pairs:
    """Return attributes as sorted pairs of text. Raises TooManyAttributesError."""
    # Check this first, because the pairs of hundreds of thousands of attributes take hundreds of megabytes.
    if len(attributes) > MAX_ATTRIBUTES:
        raise TooManyAttributesError(f"a resource or a point has more than {MAX_ATTRIBUTES} attributes")
    return tuple(
        sorted(
            (attribute.key, attribute.value.string_value or _format_value(attribute.value)) for attribute in attributes
        )
    )


def _iterate_histogram(point: Any) -> Iterator[Point]:
    """Yield cumulative buckets, as in Prometheus."""
    attributes = make_pairs(point.attributes)
    cumulative_count = 0
    bounds = [*point.explicit_bounds, float("inf")]
    for bound, count in zip(bounds, point.bucket_counts, strict=False):
        cumulative_count += count
        value = _get_current_value(point, float(cumulative_count))
        yield Point("_bucket", attributes, (("le", format_number(bound)),), point.time_unix_nano, value)
    yield from _iterate_count_and_sum(point, attributes)


def _iterate_count_and_sum(point: Any, attributes: Pairs) -> Iterator[Point]:
    yield Point("_count", attributes, (), point.time_unix_nano, _get_current_value(point, float(point.count)))
    # A histogram with negative values has no sum.
    if point.DESCRIPTOR.name == "SummaryDataPoint" or point.HasField("sum"):
        yield Point("_sum", attributes, (), point.time_unix_nano, _get_current_value(point, point.sum))


def _get_current_value(point: Any, value: float) -> float | None:
    return None if point.flags & _NO_VALUE else value


def _format_value(value: AnyValue) -> str:
    plain = _to_plain_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain, separators=(",", ":"))


def _to_plain_value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    match kind:
        case None:
            return ""
        case "array_value":
            return [_to_plain_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return {item.key: _to_plain_value(item.value) for item in value.kvlist_value.values}
        case "bytes_value":
            return value.bytes_value.hex()
        case "double_value":
            # JSON has no NaN, so numbers are written as text, like those of Prometheus.
            return format_number(value.double_value)
    return getattr(value, kind)
