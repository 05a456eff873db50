"""A scoring API: the score of each time series is the mean of its values.

It shows all that a scoring API needs: /healthz, /config and /scoring. Start it with `uvicorn app:app --port 8000`.
Environment variables (SOURCE_HOST, ...) change what /config says; each default is for a cluster with the
kube-prometheus stack.
"""

from __future__ import annotations

import math
import os
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

META = "my_something_meta_by_sample_scorer"
CPU_QUERY = 'sum by (node, namespace, pod) (rate(container_cpu_usage_seconds_total{container!="", pod!=""}[1m]))'


class Series(BaseModel):
    """One time series: its labels, and [unix seconds, value] pairs. Values are texts, as Prometheus sends them."""

    metric: dict[str, str]
    values: list[tuple[float, float]]


class ScoringRequest(BaseModel):
    """What the framework posts."""

    data: list[Series]


app = FastAPI(title="sample-scorer")


@app.get("/healthz")
def healthz() -> dict[str, str]:
    """The framework runs a scorer only while this answers 200."""
    return {"status": "ok"}


@app.get("/config")
def config() -> dict[str, Any]:
    """What to ask Prometheus, where to post the answer, and how often."""
    return {
        "name": "sample-scorer",
        "description": "A sample score for time series data",
        "source": {
            "type": "Prometheus",
            "host": os.environ.get("SOURCE_HOST", "http://kube-prometheus-kube-prome-prometheus.monitoring.svc:9090"),
            "path": os.environ.get("SOURCE_PATH", "/api/v1/query_range"),
            "params": {
                "query": os.environ.get("SOURCE_QUERY", CPU_QUERY),
                "range": int(os.environ.get("SOURCE_RANGE", "3600")),
                "step": int(os.environ.get("SOURCE_STEP", "60")),
            },
        },
        "scoring": {
            "path": "/scoring",
            "params": {
                "name": os.environ.get("SCORE_NAME", "sample_my_score"),
                "interval": int(os.environ.get("SCORE_INTERVAL", "30")),
            },
        },
    }


@app.post("/scoring")
def scoring(request: ScoringRequest) -> dict[str, list[dict[str, Any]]]:
    """One result per series: its labels, a label `meta`, and the score."""
    results = []
    for series in request.data:
        score = mean([value for _, value in series.values])
        # A score must be a finite number: a series with a NaN (a ratio 0/0, say) has none, and JSON has no NaN.
        if math.isfinite(score):
            results.append({"metric": {**series.metric, "meta": META}, "score": score})
    return {"results": results}


def mean(values: list[float]) -> float:
    """The mean; 0 of no values."""
    return sum(values) / len(values) if values else 0.0
