"""Metrics of an agent, which are this cluster's scores and the cost of its cycles, and its readiness.

Ready means *scoring*, not that a process runs. The readiness file exists while the agent takes ticks, no thread fails
again and again, and at least one of its scorers has had a recent successful cycle. An agent without scorers is ready.
Liveness is in `dsf.worker.liveness`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

import dsf.log
from dsf import metrics as names
from dsf.agent.config import AgentConfig, Summaries
from dsf.api.score import has_expired, validity_at
from dsf.api.scoringresponse import ScoringResult, gauge_labels
from dsf.api.summary import ScorerSummary
from dsf.cycle.stages import Cycle, Observer
from dsf.process import threads
from dsf.process.runtimemetrics import add_runtime_metrics

log = dsf.log.get(__name__)

_Metric = TypeVar("_Metric", Counter, Histogram)
#: Score names whose series stay although no scorer has them any more, so that the last increments are scraped.
_OLD_NAMES: Final = 100

#: Stage -> the counter of seconds used by upstream's dashboards.
_SECONDS = {"fetch": names.FETCH_SECONDS, "score": names.PERFORM_SECONDS, "publish": names.SEND_SECONDS}


@dataclass
class _Published:
    """The newest scores of one scorer."""

    cluster: str
    score_name: str
    valid_until: float
    results: Sequence[ScoringResult]

    @functools.cached_property
    def samples(self) -> dict[tuple[str, ...], float]:
        """Label values -> score. Made at the first scrape: not all results are scraped, and others more than once."""
        return {gauge_labels(self.cluster, self.score_name, labels): score for labels, score in self.results}


class AgentMetrics(Observer, Collector):
    """Written by cycles, read by the exposition. Thread-safe."""

    def __init__(self, cluster: str, config: AgentConfig, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds, and never goes back: that would prolong scores."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=False)
        counter = self._counter
        self._requests, self._failures = counter(names.REQUESTS), counter(names.FAILURES)
        self._refused, self._warnings = counter(names.REFUSED), counter(names.SOURCE_WARNINGS)
        self._messages = counter(names.MESSAGES_REFUSED)
        self._seconds = {stage: counter(metric) for stage, metric in _SECONDS.items()}
        # Seconds between two log lines of one scorer about its source's warnings.
        self._throttle = dsf.log.Throttle(600.0)
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
        self._published: dict[str, _Published] = {}
        # Score name -> its series: a metric, and the values of its further labels.
        self._series: dict[str, set[tuple[Counter | Histogram, tuple[str, ...]]]] = {}
        self.registry.register(self)

    def _counter(self, metric: names.Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self.registry)

    def publish(self, summary: ScorerSummary, results: Sequence[ScoringResult], interval: int = 0) -> None:
        """Replace the scorer's earlier results by these until their validity at this interval (0: the scorer's)
        ends."""
        declared = summary.scoring_interval
        validity = validity_at(interval or declared, summary.validity_seconds, declared)
        published = _Published(self._cluster, summary.score_name, self._clock() + validity, results)
        with self._lock:
            self._published[summary.name] = published

    def succeeded(self, score_name: str, refusal_counts: Iterable[tuple[str, int]]) -> None:
        """A cycle ended with a response; some of its results may have been refused."""
        self._child(self._requests, score_name, "success").inc()
        for reason, number in refusal_counts:
            self._child(self._refused, score_name, reason).inc(number)

    def failed(self, score_name: str, stage: str, reason: str) -> None:
        """A cycle ended without a response."""
        self._child(self._requests, score_name, "failure").inc()
        self._child(self._failures, score_name, stage, reason).inc()

    def refused_message(self) -> None:
        """Count a message in the agent's queue that was no tick."""
        self._messages.inc()

    def warned(self, cycle: Cycle, text: str) -> None:
        """Count the warning and log it now and then: the score may come from a part of the data."""
        self._child(self._warnings, cycle.summary.score_name).inc()
        not_logged = self._throttle.take(cycle.scorer)
        if not_logged is not None:
            log.warning("the source warns", scorer=cycle.scorer, warning=text, not_logged=not_logged)

    def timed(self, score_name: str, stage: str, seconds: float) -> None:
        """Duration of one stage, or of one try."""
        self._child(self._seconds[stage], score_name).inc(seconds)
        self._child(self._stages, score_name, stage).observe(seconds)

    def _child(self, metric: _Metric, score_name: str, *labels: str) -> _Metric:
        """Return the series of a metric with these labels. Series of many old score names are removed first."""
        with self._lock:
            is_new = score_name not in self._series
            self._series.setdefault(score_name, set()).add((metric, labels))
            if is_new and len(self._series) > 2 * len(self._config.summaries()) + _OLD_NAMES:
                self._remove_old_series(score_name)
        return metric.labels(score_name, *labels)

    def _remove_old_series(self, score_name: str) -> None:
        """Remove the series of all score names that no scorer has: a /config may name another one at each poll."""
        present = {summary.score_name for summary in self._config.summaries().values()} | {score_name}
        for name in self._series.keys() - present:
            for metric, labels in self._series.pop(name):
                with contextlib.suppress(KeyError):
                    metric.remove(name, *labels)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """`dynamic_score` and the configuration's state, as of now."""
        config = self._config
        summaries = config.summaries()
        scores = names.SCORE.gauge()
        # Each label set occurs once across all scorers: a duplicate would invalidate the whole scrape.
        samples: dict[tuple[str, ...], float] = {}
        for published in self._current(summaries):
            samples |= published.samples
        for labels, score in samples.items():
            scores.add_metric(labels, score)
        yield scores
        for metric, value in (
            (names.CONFIG_VALID, 0 if config.problem else 1),
            (names.CONFIG_LOADED, config.loaded_at),
            (names.CONFIG_SCORERS, len(summaries)),
        ):
            family = metric.gauge()
            family.add_metric((), value)
            yield family

    def _current(self, summaries: Summaries) -> list[_Published]:
        """Valid results of existing scorers; the others are forgotten."""
        now = self._clock()
        with self._lock:
            for scorer, published in list(self._published.items()):
                summary = summaries.get(scorer)
                if (
                    summary is None
                    or summary.score_name != published.score_name
                    or has_expired(published.valid_until, now)
                ):
                    del self._published[scorer]
            return list(self._published.values())


class ScoringProbe:
    """Maintains the file. Thread-safe. `clock` is monotonic."""

    def __init__(self, file: Path | None, config: AgentConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        # Scorer -> until when it counts as scoring.
        self._fresh_until: dict[str, float] = {}
        self._is_consuming = False
        self._is_ready: bool | None = None
        # Limits the log of the error that the file cannot be written.
        self._throttle = dsf.log.Throttle(5.0)

    def consuming(self, yes: bool) -> None:
        """The worker takes ticks, or does not: then there is no file, not even of an earlier process."""
        with self._lock:
            self._is_consuming = yes
            if not yes:
                self._put(False)

    def succeeded(self, scorer: str, interval: float) -> None:
        """A cycle ended ok, empty or partial; the next one is due after this many seconds."""
        with self._lock:
            self._fresh_until[scorer] = self._clock() + _patience(interval)

    def refresh(self) -> None:
        """Update the file to the current state. Called regularly."""
        summaries = self._config.summaries()
        now = self._clock()
        with self._lock:
            for name in self._fresh_until.keys() - summaries.keys():
                del self._fresh_until[name]
            for name, summary in summaries.items():
                self._fresh_until.setdefault(name, now + _patience(summary.scoring_interval))
            # Idle without scorers, unless the configuration was never read.
            is_idle = not summaries and not (self._config.problem and not self._config.loaded_at)
            scores = is_idle or any(until > now for until in self._fresh_until.values())
            self._put(self._is_consuming and scores and not threads.problem())

    def _put(self, ready: bool) -> None:
        """Write or remove the file. The lock is held."""
        if ready == self._is_ready or self._file is None:
            return
        try:
            if ready:
                self._file.touch()
            else:
                # Reason first: it must be in the log before the agent is seen not ready.
                if self._is_ready and self._is_consuming:
                    why = threads.problem() or "no scorer had a good cycle for 3 intervals"
                    log.warning("not ready", why=why, scorers=len(self._fresh_until))
                self._file.unlink(missing_ok=True)
        except OSError as error:
            if self._throttle.take("") is not None:
                log.error("readiness file cannot be written", file=str(self._file), error=str(error))
            return
        self._is_ready = ready


def _patience(interval: float) -> float:
    """Return seconds without success after which a scorer stops counting, also after it is first seen.

    At least ten: with an interval of one second one slow response would be an outage.
    """
    return max(3 * interval, 10.0)
