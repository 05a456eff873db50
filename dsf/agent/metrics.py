"""Metrics of an agent, which are this cluster's scores and the cost of its cycles, and its readiness.

An agent is ready if it produces scores, and not only if its process runs. The readiness file exists while the agent
takes ticks, no thread fails repeatedly, and at least one of its scorers has had a recent successful cycle. An agent
without scorers is ready. Liveness is in `dsf.worker.liveness`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

import dsf.log
from dsf import metrics as names
from dsf.agent.config import AgentConfig, Summaries
from dsf.api.score import compute_validity, has_expired
from dsf.api.scoringresponse import ScoringResult, make_gauge_label_values
from dsf.api.summary import ScorerSummary
from dsf.cycle.stages import Cycle, Observer
from dsf.process import threads
from dsf.process.runtimemetrics import add_runtime_metrics

log = dsf.log.get(__name__)

_Metric = TypeVar("_Metric", Counter, Histogram)
#: Number of score names whose series are kept although no scorer uses them, so that the last increments are scraped.
_MAX_OLD_NAMES: Final = 100
#: Seconds between two log lines of one scorer about its source's warnings.
_WARNING_INTERVAL_SECONDS: Final = 600.0
#: Minimum seconds without success after which a scorer counts as failing. With an interval of one second, a single slow
#: response would otherwise make the agent not ready.
_MIN_PATIENCE: Final = 10.0

#: Stage -> the counter of seconds used by upstream's dashboards.
_SECONDS = {"fetch": names.FETCH_SECONDS, "score": names.PERFORM_SECONDS, "publish": names.SEND_SECONDS}


@dataclass
class _PublishedScores:
    """The newest scores of one scorer."""

    cluster: str
    score_name: str
    valid_until: float
    results: Sequence[ScoringResult]

    @functools.cached_property
    def samples(self) -> dict[tuple[str, ...], float]:
        """Return the score of each tuple of label values.

        The first scrape computes them, because some results are never scraped and others more than once.
        """
        return {make_gauge_label_values(self.cluster, self.score_name, labels): score for labels, score in self.results}


@dataclass(frozen=True, slots=True)
class _ScoreSamples:
    """The samples of `dynamic_score`. Each one is created while it is rendered, because a sample takes 600 bytes."""

    score_by_labels: Mapping[tuple[str, ...], float]

    def __iter__(self) -> Iterator[Sample]:
        for label_values, score in self.score_by_labels.items():
            yield Sample(names.SCORE.name, dict(zip(names.SCORE.labels, label_values, strict=True)), score)


class AgentMetrics(Observer, Collector):
    """Collects the metrics of cycles, and exposes them with the scores to Prometheus. Thread-safe."""

    def __init__(self, cluster: str, config: AgentConfig, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds. It must be monotonic, because scores would otherwise be valid for too long."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=False)
        counter = self._make_counter
        self._requests, self._failures = counter(names.REQUESTS), counter(names.FAILURES)
        self._refused_results, self._warnings = counter(names.REFUSED), counter(names.SOURCE_WARNINGS)
        self._messages = counter(names.MESSAGES_REFUSED)
        self._seconds = {stage: counter(metric) for stage, metric in _SECONDS.items()}
        self._throttle = dsf.log.Throttle(_WARNING_INTERVAL_SECONDS)
        self._stages = Histogram(
            names.STAGE_SECONDS.name,
            names.STAGE_SECONDS.help,
            names.STAGE_SECONDS.labels,
            buckets=names.STAGE_BUCKETS,
            registry=self.registry,
        )
        add_runtime_metrics(self.registry)
        self._cluster = cluster
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._published_scores: dict[str, _PublishedScores] = {}
        # Score name -> its series. Each one is a metric and the values of its other labels.
        self._series: dict[str, set[tuple[Counter | Histogram, tuple[str, ...]]]] = {}
        self.registry.register(self)

    def _make_counter(self, metric: names.Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self.registry)

    def publish(self, summary: ScorerSummary, results: Sequence[ScoringResult], interval: int = 0) -> None:
        """Replace the scorer's earlier results by these until their validity ends.

        `interval` is the interval in force in seconds, or 0 for that of the scorer.
        """
        declared_interval = summary.scoring_interval
        validity = compute_validity(interval or declared_interval, summary.validity_seconds, declared_interval)
        published_scores = _PublishedScores(self._cluster, summary.score_name, self._clock() + validity, results)
        with self._lock:
            self._published_scores[summary.name] = published_scores

    def count_success(self, score_name: str, refusal_counts: Iterable[tuple[str, int]]) -> None:
        """Count a cycle that ended with a response, and its refused results by reason."""
        self._get_series(self._requests, score_name, "success").inc()
        for reason, number in refusal_counts:
            self._get_series(self._refused_results, score_name, reason).inc(number)

    def count_failure(self, score_name: str, stage: str, reason: str) -> None:
        """Count a cycle that ended without a response."""
        self._get_series(self._requests, score_name, "failure").inc()
        self._get_series(self._failures, score_name, stage, reason).inc()

    def count_refused_message(self) -> None:
        """Count a message in the agent's queue that was not a tick."""
        self._messages.inc()

    def on_warning(self, cycle: Cycle, text: str) -> None:
        """Count and log a warning, because the score may come from a part of the data. Repeated ones are not logged."""
        self._get_series(self._warnings, cycle.summary.score_name).inc()
        not_logged = self._throttle.take(cycle.scorer)
        if not_logged is not None:
            log.warning("the source warns", scorer=cycle.scorer, warning=text, not_logged=not_logged)

    def on_timed(self, score_name: str, stage: str, seconds: float) -> None:
        """Observe the duration of one try of a stage."""
        self._get_series(self._seconds[stage], score_name).inc(seconds)
        self._get_series(self._stages, score_name, stage).observe(seconds)

    def _get_series(self, metric: _Metric, score_name: str, *labels: str) -> _Metric:
        """Return the series of a metric with these labels. Series of many old score names are removed first."""
        with self._lock:
            is_new = score_name not in self._series
            self._series.setdefault(score_name, set()).add((metric, labels))
            if is_new and len(self._series) > 2 * len(self._config.get_summaries()) + _MAX_OLD_NAMES:
                self._remove_old_series(score_name)
        return metric.labels(score_name, *labels)

    def _remove_old_series(self, score_name: str) -> None:
        """Remove the series of score names that no scorer uses, because a /config may name another one at each poll."""
        used_names = {summary.score_name for summary in self._config.get_summaries().values()} | {score_name}
        for name in self._series.keys() - used_names:
            for metric, labels in self._series.pop(name):
                with contextlib.suppress(KeyError):
                    metric.remove(name, *labels)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield `dynamic_score` and the metrics of the configuration's state."""
        config = self._config
        summaries = config.get_summaries()
        scores = names.SCORE.make_gauge()
        # Each label set occurs once across all scorers, because a duplicate would invalidate the whole scrape.
        samples: dict[tuple[str, ...], float] = {}
        for published_scores in self._list_valid_results(summaries):
            samples |= published_scores.samples
        scores.samples = _ScoreSamples(samples)  # type: ignore[assignment]
        yield scores
        for metric, value in (
            (names.CONFIG_VALID, 0 if config.problem else 1),
            (names.CONFIG_LOADED, config.loaded_at),
            (names.CONFIG_SCORERS, len(summaries)),
        ):
            family = metric.make_gauge()
            family.add_metric((), value)
            yield family

    def _list_valid_results(self, summaries: Summaries) -> list[_PublishedScores]:
        """Return the valid results of existing scorers, and drop all others."""
        now = self._clock()
        with self._lock:
            for scorer, published_scores in list(self._published_scores.items()):
                summary = summaries.get(scorer)
                if (
                    summary is None
                    or summary.score_name != published_scores.score_name
                    or has_expired(published_scores.valid_until, now)
                ):
                    del self._published_scores[scorer]
            return list(self._published_scores.values())


class ScoringProbe:
    """Maintains the readiness file. `clock` returns monotonic seconds. Thread-safe."""

    def __init__(self, file: Path | None, config: AgentConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        # Scorer -> time by `clock` until which it counts as scoring.
        self._fresh_until: dict[str, float] = {}
        self._is_consuming = False
        self._is_ready: bool | None = None
        # Limits the log of the error that the file cannot be written.
        self._throttle = dsf.log.Throttle(5.0)

    def set_consuming(self, is_consuming: bool) -> None:
        """Store whether the worker takes ticks. If not, remove the readiness file, even one of an earlier process."""
        with self._lock:
            self._is_consuming = is_consuming
            if not is_consuming:
                self._write_file(False)

    def record_success(self, scorer: str, interval: float) -> None:
        """Record a cycle that ended ok, empty or partial. The next one is due after `interval` seconds."""
        with self._lock:
            self._fresh_until[scorer] = self._clock() + _compute_patience(interval)

    def refresh(self) -> None:
        """Update the file to the current state. The agent calls it regularly."""
        summaries = self._config.get_summaries()
        now = self._clock()
        with self._lock:
            for name in self._fresh_until.keys() - summaries.keys():
                del self._fresh_until[name]
            for name, summary in summaries.items():
                self._fresh_until.setdefault(name, now + _compute_patience(summary.scoring_interval))
            # An agent without scorers is ready, unless it could not read its configuration yet.
            is_idle = not summaries and not (self._config.problem and not self._config.loaded_at)
            is_scoring = is_idle or any(fresh_until > now for fresh_until in self._fresh_until.values())
            self._write_file(self._is_consuming and is_scoring and not threads.describe_failing_threads())

    def _write_file(self, is_ready: bool) -> None:
        """Create or remove the file. The caller holds the lock."""
        if is_ready == self._is_ready or self._file is None:
            return
        try:
            if is_ready:
                self._file.touch()
            else:
                # The reason is logged first, so that the log has it when Kubernetes notices that the agent is not
                # ready.
                if self._is_ready and self._is_consuming:
                    cause = threads.describe_failing_threads() or "no scorer had a good cycle for 3 intervals"
                    log.warning("not ready", why=cause, scorers=len(self._fresh_until))
                self._file.unlink(missing_ok=True)
        except OSError as error:
            if self._throttle.take("") is not None:
                log.error("readiness file cannot be written", file=str(self._file), error=str(error))
            return
        self._is_ready = is_ready


def _compute_patience(interval: float) -> float:
    """Return the seconds without success after which a scorer counts as failing, also if it is new."""
    return max(3 * interval, _MIN_PATIENCE)
