"""Pushed series that the agent's scorers select.

A collector pushes all its metrics. A point that no scorer selects is accepted and dropped, because pushing it is not an
error of the sender. A selected point that cannot be kept is rejected with the reason, which the sender logs.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from dsf.api.summary import ScorerSummary
from dsf.otlp.points import (
    SUFFIXES,
    Pairs,
    Point,
    TooManyAttributesError,
    find_refusal,
    iterate_points,
    make_pairs,
)
from dsf.otlp.selector import Selector, SelectorError, parse_selectors, to_prometheus_name, with_short_names
from dsf.sources.base import OTLP, get_source_type
from dsf.sources.memory import compute_retention
from dsf.sources.window import (
    MAX_FUTURE_SECONDS,
    MAX_LABEL_BYTES,
    OutdatedSampleError,
    Window,
    WindowBudget,
    WindowFullError,
)

#: Seconds between two removals of old samples.
_FORGET_SECONDS: Final = 10.0

#: Value of the metric's label -> message to the sender; empty: the error says what is wrong.
REASONS: Final = {
    "delta": "delta temporality: prefer cumulative in the exporter, or use the collector's deltatocumulative processor",
    "exponential_histogram": "exponential histograms are not taken: let the SDK use explicit buckets",
    "unknown_kind": "a kind of metric that is not known",
    "no_value": "a point without a value (asDouble, asInt) and without the flag that there is none",
    "outdated": "older than a sample that was pushed before, or than any scorer asks for",
    "future": "more than 300 s ahead of this agent's clock",
    "full": "",
    "labels": "",
}


#: Maximum attributes of all samples of a request, including those of their resource and scope, which are compared for
#: each sample.
MAX_COMPARED_ATTRIBUTES: Final = 20_000_000
#: Maximum characters of a series' attributes. The later limit on labels does not bound attributes, because several
#: attributes may become one label.
_MOST_ATTRIBUTES: Final = 4 * MAX_LABEL_BYTES


class _Origin(NamedTuple):
    """The attributes of a resource and of a scope, which all their series have as labels."""

    resource: Pairs
    scope: Pairs


@dataclass(frozen=True, slots=True)
class _Selection:
    """Selectors of the scorers, by metric name."""

    selectors: Mapping[str, list[Selector]] = field(default_factory=dict)
    #: Selectors without a name.
    any_name: tuple[Selector, ...] = ()
    #: Seconds for which samples are kept.
    keep: float = 0.0
    #: Number of scorers.
    scorers: int = 0

    def find_selectors(self, name: str) -> list[Selector]:
        return [*self.selectors.get(name, ()), *self.any_name]


@dataclass(slots=True)
class Rejected:
    """The rejected points of one request."""

    points: int = 0
    #: Number of attributes of all samples of the request so far, including those of their resource and scope.
    compared_attributes: int = 0
    #: Reason -> text for the sender.
    reason_texts: dict[str, str] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """Message to the sender."""
        return "; ".join(self.reason_texts.values())


class Received:
    """Ingests pushed points and keeps their samples. Thread-safe."""

    def __init__(
        self,
        budget: WindowBudget,
        summaries: Callable[[], Mapping[str, ScorerSummary]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare an empty store.

        `summaries` returns the summaries of the active scorers by scorer; `clock` returns unix seconds.
        """
        self.window = Window(budget)
        #: Number of points by outcome: kept, unwanted, or a key of REASONS.
        self.counts: Counter[str] = Counter()
        self._summaries = summaries
        self._clock = clock
        self._known_summaries: Mapping[str, ScorerSummary] | None = None
        self._selection = _Selection()
        #: Hashes of the keys of series whose names match a selector and whose labels do not. The keys themselves may be
        #: of any size.
        self._unwanted_hashes: set[int] = set()
        self._max_unwanted_hashes = budget.max_series
        self._forgotten_at = 0.0
        # Reentrant: the first thread that notices a changed configuration calls `tidy` of all sources, including this
        # one, which may be in `ingest`.
        self._lock = threading.RLock()

    @property
    def scorers(self) -> int:
        """Number of scorers with selectors."""
        return self._selection.scorers

    def ingest(self, request: ExportMetricsServiceRequest) -> Rejected:
        """Keep the selected points, and return the rejected points. Raises TooManyAttributesError."""
        now = self._clock()
        counts: Counter[str] = Counter()
        rejections = Rejected()
        # Process one request at a time, because in Python two at a time are no faster.
        with self._lock:
            selection = self._get_selection()
            self._forget(selection, now)
            for resource_metrics in request.resource_metrics:
                resource = make_pairs(resource_metrics.resource.attributes)
                for scope_metrics in resource_metrics.scope_metrics:
                    origin = _Origin(resource, _make_scope_labels(scope_metrics.scope))
                    for metric in scope_metrics.metrics:
                        self._store_metric(metric, origin, selection, now, counts, rejections)
            self.counts.update(counts)
        return rejections

    def tidy(self) -> None:
        """Drop samples that have expired or that no scorer selects any more.

        Does nothing while a request is ingested, which drops them as well. A large request takes seconds, and the
        agent's main loop calls this method.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._forget(self._get_selection(), self._clock())
        finally:
            self._lock.release()

    def _store_metric(
        self,
        metric: Metric,
        origin: _Origin,
        selection: _Selection,
        now: float,
        counts: Counter[str],
        rejections: Rejected,
    ) -> None:
        kind = metric.WhichOneof("data")
        if kind is None:
            return
        name = to_prometheus_name(metric.name)
        selectors = {
            suffix: found_selectors
            for suffix in SUFFIXES.get(kind, ("",))
            if (found_selectors := selection.find_selectors(name + suffix))
        }
        point_count = len(getattr(metric, kind).data_points)
        if not selectors and kind != "exponential_histogram":
            counts["unwanted"] += point_count
            return
        reason = find_refusal(metric, kind)
        if reason:
            # A scorer may select an exponential histogram by its own name, or by the name of a histogram's suffix.
            is_selected = selectors or any(selection.find_selectors(name + suffix) for suffix in SUFFIXES["histogram"])
            if not is_selected:
                counts["unwanted"] += point_count
                return
            counts[reason] += point_count
            rejections.points += point_count
            rejections.reason_texts.setdefault(reason, f"{metric.name}: {REASONS[reason]}")
            return
        min_time = now - selection.keep
        # Hashes of the refused points, whose attributes may be large.
        refused_points: set[int] = set()
        for point in iterate_points(metric, kind):
            if point.suffix not in selectors:
                counts["unwanted"] += 1
                continue
            rejections.compared_attributes += len(origin.resource) + len(point.attributes)
            if rejections.compared_attributes > MAX_COMPARED_ATTRIBUTES:
                raise TooManyAttributesError(
                    f"the samples of the request have more than {MAX_COMPARED_ATTRIBUTES} attributes together, "
                    "including those of their resource"
                )
            outcome, detail = self._store_point(
                name + point.suffix, origin, point, selectors[point.suffix], now, min_time
            )
            counts[outcome] += 1
            if outcome in REASONS:
                refused_points.add(hash((point.attributes, point.nanoseconds)))
                rejections.reason_texts.setdefault(outcome, f"{metric.name}: {detail or REASONS[outcome]}")
        # The sender counts its points: a histogram is one point, but many samples here.
        rejections.points += len(refused_points)

    def _store_point(
        self, name: str, origin: _Origin, point: Point, selectors: list[Selector], now: float, min_time: float
    ) -> tuple[str, str]:
        """Return the outcome of a point, which is a key of `counts`, and a text for the sender.

        The text is empty unless it says more than the reason's text in REASONS.
        """
        time = point.nanoseconds / 1e9 or now
        if time > now + MAX_FUTURE_SECONDS:
            return "future", ""
        if time < min_time:
            return "outdated", ""
        key = (name, origin, point.attributes, point.extra)
        key_hash = hash(key)
        if key_hash in self._unwanted_hashes:
            return "unwanted", ""
        labels: dict[str, str] | None = None
        if key not in self.window:
            labels = _make_labels(name, origin, point)
            if not any(selector.matches(labels) for selector in selectors):
                if len(self._unwanted_hashes) < self._max_unwanted_hashes:
                    self._unwanted_hashes.add(key_hash)
                return "unwanted", ""
            if _count_characters(origin, point) > _MOST_ATTRIBUTES:
                return "labels", f"the attributes of a series have more than {_MOST_ATTRIBUTES} characters"
        if point.lacks_value:
            return "no_value", ""
        try:
            self.window.add(key, lambda: labels or _make_labels(name, origin, point), time, point.value)
        except OutdatedSampleError:
            return "outdated", ""
        except WindowFullError as error:
            return "full", str(error)
        except ValueError as error:
            return "labels", str(error)
        return "kept", ""

    def _get_selection(self) -> _Selection:
        """Return the selection of the current scorers."""
        summaries = self._summaries()
        if summaries is not self._known_summaries:
            self._known_summaries = summaries
            self._selection = _make_selection(summaries)
            self._unwanted_hashes.clear()
            self._forgotten_at = 0.0
        return self._selection

    def _forget(self, selection: _Selection, now: float) -> None:
        # The difference is negative after the clock was set back.
        if 0 <= now - self._forgotten_at < _FORGET_SECONDS:
            return
        self._forgotten_at = now
        self.window.drop_future_series(now)
        min_time = now - selection.keep

        def compute_limit(labels: Mapping[str, str]) -> float:
            is_selected = any(selector.matches(labels) for selector in selection.find_selectors(labels["__name__"]))
            return min_time if is_selected else float("inf")

        self.window.forget(compute_limit)


def _make_scope_labels(scope: InstrumentationScope) -> Pairs:
    """Return the scope labels that OpenTelemetry defines for Prometheus; none without a name."""
    labels = (("otel_scope_name", scope.name), ("otel_scope_version", scope.version))
    return tuple((label, text) for label, text in labels if text) if scope.name else ()


def _count_characters(origin: _Origin, point: Point) -> int:
    """Return the characters of all attributes. Attributes that become the same label count separately."""
    return sum(len(key) + len(value) for pairs in (*origin, point.attributes, point.extra) for key, value in pairs)


def _make_labels(name: str, origin: _Origin, point: Point) -> dict[str, str]:
    """Return all labels of a series. An attribute of the point overrides one of the scope or resource."""
    attributes = (*origin.resource, *point.attributes, *point.extra, *origin.scope)
    labels = {to_prometheus_name(key): value for key, value in attributes}
    return with_short_names({**labels, "__name__": name})


def _make_selection(summaries: Mapping[str, ScorerSummary]) -> _Selection:
    selectors: dict[str, list[Selector]] = {}
    any_name: list[Selector] = []
    keep = 0.0
    scorers = 0
    for summary in (source for scorer_summary in summaries.values() for source in scorer_summary.each_source):
        if get_source_type(summary) != OTLP:
            continue
        try:
            scorer_selectors = parse_selectors(summary.source_query)
        except SelectorError:
            # The cycle of the scorer reports the invalid selector.
            continue
        keep = max(keep, compute_retention(summary))
        scorers += 1
        for selector in scorer_selectors:
            if selector.name:
                selectors.setdefault(selector.name, []).append(selector)
            else:
                any_name.append(selector)
    return _Selection(selectors, tuple(any_name), keep, scorers)
