"""A scoring API: how likely it is that a pod soon uses more than a threshold.

Each series is continued by some steps (`dsf.scorer.forecast`), and the highest value to come becomes a score: 50 at the
threshold, towards 100 above it and towards 0 below. Start it with `uvicorn app:app --port 8000`.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable

from dsf.scorer import Prometheus, Score, Scorer, Series, Skipped, env_number, forecast

#: Minimum samples of a series for a score.
MIN_LENGTH = int(env_number("MIN_LENGTH", 20, least=1, whole=True))
#: Number of forecast steps.
HORIZON_LENGTH = int(env_number("HORIZON_LENGTH", 10, least=1, whole=True))
#: Threshold in the unit of the query; for the query below, CPU cores.
THRESHOLD = env_number("THRESHOLD", 1)
#: Steepness of the score at the threshold, per unit of the query.
ALPHA = env_number("ALPHA", 20)
#: Number of samples from which the next one is computed.
LAGS = 10

app = Scorer(
    name="simple-prediction-scorer",
    description="A simple prediction score for time series data",
    score_name="simple_prediction_score",
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
        step=30,
    ),
    env="",
)


@app.score
def predict(series: list[Series]) -> Iterable[Score | Skipped]:
    """Return a score per series, the highest last, or why it has none.

    If several results have one name the framework takes the last one, so a namespace is as close to the threshold as
    the closest of its pods.
    """
    newest = max((float(item.times.max()) for item in series if not item.is_empty), default=0.0)
    predictions = [prediction(item, newest) for item in series]
    yield from (predicted for predicted in predictions if isinstance(predicted, Skipped))
    yield from sorted(
        (predicted for predicted in predictions if isinstance(predicted, Score)), key=lambda score: score.value
    )


def prediction(series: Series, newest: float) -> Score | Skipped:
    """Return the score of one series; `newest` is the time of the newest sample of all series."""
    prediction_result = forecast(series, horizon=HORIZON_LENGTH, lags=LAGS, least=MIN_LENGTH)
    if isinstance(prediction_result, Skipped):
        return prediction_result
    if newest - float(series.finite().times.max()) > HORIZON_LENGTH * prediction_result.step:
        # Its pod has ended: the forecast would be about the past.
        return series.skip("ended")
    return series.score(likelihood(float(prediction_result.values.max())), meta=meta(series.labels))


def likelihood(highest: float) -> float:
    """Return 0 to 100: the logistic function of the distance above the threshold."""
    distance = ALPHA * (highest - THRESHOLD)
    # exp of a negative number cannot overflow, so each half uses its own form of the same function.
    if distance >= 0:
        return 100 / (1 + math.exp(-distance))
    return 100 * math.exp(distance) / (1 + math.exp(distance))


def meta(labels: dict[str, str]) -> str:
    """Return the parameters of the score as base64 of JSON: the text must be valid as a label and as part of a name."""
    label = "_".join(labels.get(name, "unknown") for name in ("node", "namespace", "pod"))
    text = json.dumps(
        {"predictor_label": label, "alpha": ALPHA, "threshold": THRESHOLD}, separators=(",", ":"), ensure_ascii=False
    )
    return base64.b64encode(text.encode()).decode("ascii")
