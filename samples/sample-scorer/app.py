"""A scoring API: the score of each time series is the mean of its values.

Start it with `uvicorn app:app --port 8000`. Environment variables (SOURCE_HOST, ...) change what /config says; each
default is for a cluster with the kube-prometheus stack.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dsf.scorer import Prometheus, Score, Scorer, Series

META = "my_something_meta_by_sample_scorer"

app = Scorer(
    name="sample-scorer",
    description="A sample score for time series data",
    score_name="sample_my_score",
    interval=30,
    source=Prometheus(
        host="http://kube-prometheus-kube-prome-prometheus.monitoring.svc:9090",
        path="/api/v1/query_range",
        query=(
            # Each container once, however many jobs scrape the kubelets.
            "sum by (node, namespace, pod) (max by (node, namespace, pod, container) ("
            'rate(container_cpu_usage_seconds_total{container!="", pod!=""}[5m])))'
        ),
        range=3600,
        step=60,
    ),
    env="",
)


@app.score
def mean(series: list[Series]) -> Iterable[Score]:
    """Return a result per series: its labels, a label `meta`, and the score.

    The mean of values of which one is NaN (a ratio 0/0, say) is NaN, and the library leaves such a result out: a score
    must be a number.
    """
    for item in series:
        # Values of 1e308 have a mean that is not finite either.
        with np.errstate(over="ignore"):
            yield item.score(0.0 if item.is_empty else item.values.mean(), meta=META)
