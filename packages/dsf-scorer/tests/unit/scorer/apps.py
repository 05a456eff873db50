"""Scorers of one function, requests and metrics, for the tests of the service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from starlette.testclient import TestClient

from dsf.scorer import Prometheus, Score, Scorer, Series

TWO = {
    "data": [{"metric": {"pod": "a"}, "values": [[1, "5"], [2, "7"]]}, {"metric": {"pod": "b"}, "values": [[1, "NaN"]]}]
}


def scorer(**values: Any) -> Scorer:
    """Return a scorer without a function."""
    fields: dict[str, Any] = {"name": "mean", "description": "d", "score_name": "mean_score", "interval": 30}
    fields["source"] = Prometheus(query="up", range=60, step=5)
    return Scorer(**(fields | values))


def mean_scorer(**values: Any) -> Scorer:
    """Return a scorer that scores every series by its mean."""
    mean_service = scorer(**values)

    @mean_service.score
    def mean(series: list[Series]) -> Iterable[Score]:
        for entry in series:
            yield entry.score(entry.values.mean() if len(entry) else float("nan"))

    return mean_service


def metric(client: TestClient, line: str) -> float:
    """Return the value of a line of /metrics, or 0 if the line is absent."""
    for metric_line in client.get("/metrics").text.splitlines():
        if metric_line.startswith(line + " "):
            return float(metric_line.rpartition(" ")[2])
    return 0.0
