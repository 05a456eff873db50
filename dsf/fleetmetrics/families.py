"""Metric families per scorer and cluster.

Values are collected in dictionaries by label values first, so that no label set is ever exposed twice, whatever Redis
holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from dsf import metrics
from dsf.api.score import has_expired
from dsf.api.scoringresponse import make_gauge_label_values, truncate_label
from dsf.store.pairs import OUTCOMES, SUCCESSES, PairState

Labels = tuple[str, ...]
_Family = CounterMetricFamily | GaugeMetricFamily


class PairFamilies:
    """Sums up the metrics of pairs. `collect` yields the sums as metric families."""

    def __init__(self, score_names: Mapping[str, str], now: float) -> None:
        """`score_names` maps scorers to score names. Results that are expired at `now` (unix seconds) are omitted."""
        self._score_names = score_names
        self._now = now
        self._families: list[tuple[_Family, defaultdict[Labels, float]]] = []
        self._scores = self._register_family(metrics.SCORE.make_gauge())
        self._requests = self._register_family(_make_counter_per_cluster(metrics.REQUESTS))
        self._last_success = self._register_family(metrics.LAST_SUCCESS.make_gauge())
        self._valid_until = self._register_family(metrics.VALID_UNTIL.make_gauge())
        self._intervals = self._register_family(metrics.INTERVAL.make_gauge())
        self._scheduled = self._register_family(metrics.SCHEDULED.make_counter())
        self._cycles = self._register_family(metrics.CYCLES.make_counter())
        self._failures = self._register_family(_make_counter_per_cluster(metrics.FAILURES))
        self._refused_results = self._register_family(_make_counter_per_cluster(metrics.REFUSED))
        self._clamped = self._register_family(_make_counter_per_cluster(metrics.CLAMPED))
        self._held_values = self._register_family(_make_counter_per_cluster(metrics.HELD))
        self._stage_seconds: defaultdict[Labels, float] = defaultdict(float)
        self._stage_counts: defaultdict[Labels, int] = defaultdict(int)

    def _register_family(self, family: _Family) -> defaultdict[Labels, float]:
        """Register a family for `collect`, and return the mapping for its values."""
        values: defaultdict[Labels, float] = defaultdict(float)
        self._families.append((family, values))
        return values

    def add(self, pair: PairState, *, interval: int | None = None, with_items: bool = True) -> None:
        """Add the metrics of one pair.

        `interval` is the interval in force (seconds), None if the pair is paused. Without `with_items`, the series of
        its items are omitted.
        """
        # Without items, everything is in the row, and parsing a large score would take long.
        score = pair.score if with_items else None
        score_name = self._score_names.get(pair.scorer) or (score.score_name if score else pair.scorer)
        name, cluster = truncate_label(score_name), truncate_label(pair.cluster)
        self._add_counters(pair, cluster, name)
        if pair.last_success is not None:
            _keep_greatest(self._last_success, (cluster, name), pair.last_success)
        if interval is not None:
            _keep_greatest(self._intervals, (cluster, name), interval)
        if valid_until := score.valid_until if score is not None else pair.valid_until:
            # An expired score keeps this gauge: alerts compare its past value with time().
            _keep_greatest(self._valid_until, (cluster, name), valid_until)
        if score is not None and not has_expired(score.valid_until, self._now):
            for labels, value in score.results:
                self._scores[make_gauge_label_values(pair.cluster, score.score_name, labels)] = value

    def _add_counters(self, pair: PairState, cluster: str, name: str) -> None:
        """Add the counters of a pair's cycles, failures and stages."""
        self._scheduled[cluster, name] += pair.scheduled
        for outcome in OUTCOMES:
            self._cycles[cluster, name, outcome] += pair.count(outcome)
        lost_count = pair.count("lost")
        self._requests[name, "success", cluster] += sum(pair.count(outcome) for outcome in SUCCESSES)
        self._requests[name, "failure", cluster] += pair.count("error") + lost_count
        for (stage, reason), count in pair.read_error_counts().items():
            self._failures[name, stage, reason, cluster] += count
        if lost_count:
            # No result arrived, so the failed stage is unknown.
            self._failures[name, "", "lost", cluster] += lost_count
        for reason, count in pair.read_refusal_counts().items():
            self._refused_results[name, reason, cluster] += count
        self._clamped[name, cluster] += pair.clamped
        if pair.held:
            self._held_values[name, cluster] += pair.held
        for stage, (seconds, count) in pair.read_timings().items():
            self._stage_seconds[name, stage, cluster] += seconds
            self._stage_counts[name, stage, cluster] += count

    def collect(self) -> Iterable[Metric]:
        """Yield each family once, including empty families."""
        for family, values in self._families:
            yield add_values(family, values)
        # A summary without quantiles, because results contain sums and no buckets.
        spec = metrics.STAGE_SECONDS
        stages = SummaryMetricFamily(spec.name, spec.help, labels=(*spec.labels, "ds_cluster"))
        for labels, count in self._stage_counts.items():
            stages.add_metric(labels, count_value=count, sum_value=self._stage_seconds[labels])
        yield stages


def add_values(family: _Family, values: Mapping[Labels, float]) -> Metric:
    """Add a series for each value to the family, and return the family."""
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _make_counter_per_cluster(spec: metrics.Metric) -> CounterMetricFamily:
    # Counters have a cluster label, because the total of all clusters would decrease when a pair is removed, and
    # Prometheus would treat that as a restart.
    return spec.make_counter((*spec.labels, "ds_cluster"))


def _keep_greatest(values: dict[Labels, float], labels: Labels, value: float) -> None:
    values[labels] = max(value, values.get(labels, value))
