"""Metrics of a service, in a separate registry."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector


class Metrics:
    """The metrics of one service; each has the label `ds_score_name`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        ProcessCollector(registry=registry)
        name = "dynamic_scoring_api_"
        self.requests = Counter(
            f"{name}requests", "Scoring requests by HTTP status.", ["ds_score_name", "status"], registry=registry
        )
        self.seconds = Histogram(
            f"{name}request_seconds",
            "Time from the head of a scoring request to its response, including the wait for other requests.",
            ["ds_score_name"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=registry,
        )
        self.bytes = Histogram(
            f"{name}request_bytes",
            "Bytes of scoring requests.",
            ["ds_score_name"],
            buckets=(100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000),
            registry=registry,
        )
        self.series = Histogram(
            f"{name}request_series",
            "Time series in scoring requests.",
            ["ds_score_name"],
            buckets=(0, 1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 100_000),
            registry=registry,
        )
        self.results = Counter(f"{name}results", "Results in responses.", ["ds_score_name"], registry=registry)
        self.refused_results = Counter(
            f"{name}results_refused",
            "Results that were left out of responses.",
            ["ds_score_name", "reason"],
            registry=registry,
        )
        self.running = Gauge(
            f"{name}requests_in_progress",
            "Scoring requests that are read or scored.",
            ["ds_score_name"],
            registry=registry,
        )


class ScorerMetrics:
    """The metrics of one score. Keeps the labelled children, which saves label lookups."""

    def __init__(self, metrics: Metrics, score_name: str) -> None:
        self._requests = metrics.requests
        self._refused_results = metrics.refused_results
        self._score_name = score_name
        self._seconds = metrics.seconds.labels(score_name)
        self._results = metrics.results.labels(score_name)
        self.bytes = metrics.bytes.labels(score_name)
        self.series = metrics.series.labels(score_name)
        self.running = metrics.running.labels(score_name)

    def count_response(self, status: int, seconds: float) -> None:
        """Count a response and its duration."""
        self._requests.labels(self._score_name, str(status)).inc()
        self._seconds.observe(seconds)

    def count_results(self, results: int, refusal_counts: Mapping[str, int]) -> None:
        """Count a function's scores, and by reason the series without one."""
        self._results.inc(results)
        for reason, count in refusal_counts.items():
            self._refused_results.labels(self._score_name, reason).inc(count)
