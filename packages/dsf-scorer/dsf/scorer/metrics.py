"""Metrics of a service, in a separate registry."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector


class Metrics:
    """The metrics of one service; each has the label `scorer`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        ProcessCollector(registry=registry)
        name = "dynamic_scoring_api_"
        self.requests = Counter(
            f"{name}requests", "Scoring requests by HTTP status.", ["scorer", "status"], registry=registry
        )
        self.seconds = Histogram(
            f"{name}request_seconds",
            "Time from the head of a scoring request to its answer, the waiting for a turn included.",
            ["scorer"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=registry,
        )
        self.bytes = Histogram(
            f"{name}request_bytes",
            "Bytes of scoring requests.",
            ["scorer"],
            buckets=(100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000),
            registry=registry,
        )
        self.series = Histogram(
            f"{name}request_series",
            "Time series in scoring requests.",
            ["scorer"],
            buckets=(0, 1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 100_000),
            registry=registry,
        )
        self.results = Counter(f"{name}results", "Results that were answered.", ["scorer"], registry=registry)
        self.refused = Counter(
            f"{name}results_refused", "Results that were left out of answers.", ["scorer", "reason"], registry=registry
        )
        self.running = Gauge(
            f"{name}requests_in_progress", "Scoring requests that are read or scored.", ["scorer"], registry=registry
        )


class ScorerMetrics:
    """The same for one scorer, which saves label lookups."""

    def __init__(self, metrics: Metrics, scorer: str) -> None:
        self._requests = metrics.requests
        self._refused = metrics.refused
        self._scorer = scorer
        self._seconds = metrics.seconds.labels(scorer)
        self._results = metrics.results.labels(scorer)
        self.bytes = metrics.bytes.labels(scorer)
        self.series = metrics.series.labels(scorer)
        self.running = metrics.running.labels(scorer)

    def answered(self, status: int, seconds: float) -> None:
        """Count a response."""
        self._requests.labels(self._scorer, str(status)).inc()
        self._seconds.observe(seconds)

    def gave(self, results: int, refused_counts: Mapping[str, int]) -> None:
        """Count a function's results."""
        self._results.inc(results)
        for reason, count in refused_counts.items():
            self._refused.labels(self._scorer, reason).inc(count)
