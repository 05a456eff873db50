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
    """A scorer that has no function yet."""
    given: dict[str, Any] = {"name": "mean", "description": "d", "score_name": "mean_score", "interval": 30}
    given["source"] = Prometheus(query="up", range=60, step=5)
    return Scorer(**(given | values))


def mean_scorer(**values: Any) -> Scorer:
    """One that gives every series its mean."""
    made = scorer(**values)

    @made.score
    def mean(series: list[Series]) -> Iterable[Score]:
        for one in series:
            yield one.score(one.values.mean() if len(one) else float("nan"))

    return made


def metric(client: TestClient, line: str) -> float:
    """The value of one line of /metrics; 0 when it is not there."""
    for found in client.get("/metrics").text.splitlines():
        if found.startswith(line + " "):
            return float(found.rpartition(" ")[2])
    return 0.0
