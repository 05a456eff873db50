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
from dsf.api.scoringresponse import cut_label, gauge_labels
from dsf.store.pairs import OUTCOMES, SUCCESSES, PairState

Labels = tuple[str, ...]
_Family = CounterMetricFamily | GaugeMetricFamily


class PairFamilies:
    """Sums of the added pairs; `collect` yields them as metric families."""

    def __init__(self, score_names: Mapping[str, str], now: float) -> None:
        """`score_names` by scorer; `now` in unix seconds decides which results have expired."""
        self._score_names = score_names
        self._now = now
        self._families: list[tuple[_Family, defaultdict[Labels, float]]] = []
        self._scores = self._values(metrics.SCORE.gauge())
        self._requests = self._values(_per_cluster(metrics.REQUESTS))
        self._last_success = self._values(metrics.LAST_SUCCESS.gauge())
        self._valid_until = self._values(metrics.VALID_UNTIL.gauge())
        self._intervals = self._values(metrics.INTERVAL.gauge())
        self._scheduled = self._values(metrics.SCHEDULED.counter())
        self._cycles = self._values(metrics.CYCLES.counter())
        self._failures = self._values(_per_cluster(metrics.FAILURES))
        self._refused = self._values(_per_cluster(metrics.REFUSED))
        self._clamped = self._values(_per_cluster(metrics.CLAMPED))
        self._held = self._values(_per_cluster(metrics.HELD))
        self._stage_seconds: defaultdict[Labels, float] = defaultdict(float)
        self._stage_counts: defaultdict[Labels, int] = defaultdict(int)

    def _values(self, family: _Family) -> defaultdict[Labels, float]:
        values: defaultdict[Labels, float] = defaultdict(float)
        self._families.append((family, values))
        return values

    def add(self, pair: PairState, *, interval: int | None = None, with_items: bool = True) -> None:
        """Add one pair, with the interval in force; without items only metrics with one series per pair."""
        score = pair.score
        score_name = self._score_names.get(pair.scorer) or (score.score_name if score else pair.scorer)
        name, cluster = cut_label(score_name), cut_label(pair.cluster)
        self._add_books(pair, cluster, name)
        if pair.last_success is not None:
            _keep_greatest(self._last_success, (cluster, name), pair.last_success)
        if interval is not None:
            _keep_greatest(self._intervals, (cluster, name), interval)
        if score is not None:
            # An expired score keeps this gauge: alerts compare its past value with time().
            _keep_greatest(self._valid_until, (cluster, name), score.valid_until)
            if with_items and not has_expired(score.valid_until, self._now):
                for labels, value in score.results:
                    self._scores[gauge_labels(pair.cluster, score.score_name, labels)] = value

    def _add_books(self, pair: PairState, cluster: str, name: str) -> None:
        self._scheduled[cluster, name] += pair.scheduled
        for outcome in OUTCOMES:
            self._cycles[cluster, name, outcome] += pair.count(outcome)
        lost = pair.count("lost")
        self._requests[name, "success", cluster] += sum(pair.count(outcome) for outcome in SUCCESSES)
        self._requests[name, "failure", cluster] += pair.count("error") + lost
        for (stage, reason), number in pair.errors().items():
            self._failures[name, stage, reason, cluster] += number
        if lost:
            # No result arrived, so the failed stage is unknown.
            self._failures[name, "", "lost", cluster] += lost
        for reason, number in pair.refused().items():
            self._refused[name, reason, cluster] += number
        self._clamped[name, cluster] += pair.clamped
        if pair.held:
            self._held[name, cluster] += pair.held
        for stage, (seconds, number) in pair.timings().items():
            self._stage_seconds[name, stage, cluster] += seconds
            self._stage_counts[name, stage, cluster] += number

    def collect(self) -> Iterable[Metric]:
        """Return the families, each once, also when it is empty."""
        for family, values in self._families:
            yield filled(family, values)
        # Results carry sums, not buckets, which is a summary without quantiles.
        spec = metrics.STAGE_SECONDS
        stages = SummaryMetricFamily(spec.name, spec.help, labels=(*spec.labels, "ds_cluster"))
        for labels, number in self._stage_counts.items():
            stages.add_metric(labels, count_value=number, sum_value=self._stage_seconds[labels])
        yield stages


def filled(family: _Family, values: Mapping[Labels, float]) -> Metric:
    """Return the family with these values."""
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _per_cluster(spec: metrics.Metric) -> CounterMetricFamily:
    # A total of all clusters would fall when a pair is removed, which Prometheus takes for a restart.
    return spec.counter((*spec.labels, "ds_cluster"))


def _keep_greatest(values: dict[Labels, float], labels: Labels, value: float) -> None:
    values[labels] = max(value, values.get(labels, value))
