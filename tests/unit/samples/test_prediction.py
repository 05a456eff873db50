"""simple-prediction-scorer: from a forecast to a score."""

from __future__ import annotations

import base64
import json
import math

import numpy as np
import pytest

from dsf.scorer import Score, ScorerError, Series, Skipped
from tests.unit.samples.conftest import Load

SAMPLE = "simple-prediction-scorer"


def series(pod: str, values: object, start: float = 1_718_600_000) -> Series:
    labels = {"node": "n1", "namespace": "shop", "pod": pod}
    return Series.of(labels, values, start=start, step=30)  # type: ignore[arg-type]


def test_defaults(sample: Load) -> None:
    module = sample()
    assert (module.MIN_LENGTH, module.HORIZON_LENGTH, module.THRESHOLD, module.ALPHA) == (20, 10, 1.0, 20.0)
    config = module.app.config()
    assert config["scoring"]["params"] == {"name": "simple_prediction_score", "interval": 30}
    assert (config["source"]["params"]["range"], config["source"]["params"]["step"]) == (3600, 30)


@pytest.mark.parametrize(
    ("variable", "value"), [("THRESHOLD", "high"), ("ALPHA", "nan"), ("MIN_LENGTH", "0"), ("HORIZON_LENGTH", "-1")]
)
def test_invalid_setting_is_refused(sample: Load, variable: str, value: str) -> None:
    with pytest.raises(ScorerError, match=variable):
        sample(**{variable: value})


def test_score_is_the_logistic_function_of_the_highest_forecast(sample: Load) -> None:
    module = sample(THRESHOLD="2", ALPHA="0.5")
    assert module.likelihood(2.0) == 50.0
    assert module.likelihood(5.0) == pytest.approx(100 / (1 + math.exp(-1.5)))
    assert module.likelihood(-5.0) == pytest.approx(100 / (1 + math.exp(3.5)))
    (score,) = module.predict([series("web", 0.1 * np.arange(60))])
    # The series ends at 5.9, and its tenth forecast value is 6.9.
    assert score.value == pytest.approx(100 / (1 + math.exp(-0.5 * (6.9 - 2))), rel=1e-3)


@pytest.mark.parametrize(("value", "score"), [(1e308, 100.0), (-1e308, 0.0), (math.inf, 100.0), (-math.inf, 0.0)])
def test_likelihood_never_overflows(sample: Load, value: float, score: float) -> None:
    assert sample().likelihood(value) == score
    with np.errstate(all="ignore"):
        (result,) = sample().predict([series("web", [value / 2] * 30)]) if math.isfinite(value) else [Score(score)]
    assert result.value == score


def test_negative_alpha_reverses_the_likelihood(sample: Load) -> None:
    module = sample(ALPHA="-20")
    assert module.likelihood(1e300) == 0
    assert module.likelihood(-1e300) == 100


def test_meta(sample: Load) -> None:
    (score,) = sample().predict([series("büro", [0.5] * 30)])
    assert score.labels.keys() == {"node", "namespace", "pod", "meta"}
    meta = base64.b64decode(score.labels["meta"]).decode()
    assert meta == '{"predictor_label":"n1_shop_büro","alpha":20.0,"threshold":1.0}'
    (score,) = sample().predict([Series.of({}, [0.5] * 30)])
    assert json.loads(base64.b64decode(score.labels["meta"]))["predictor_label"] == "unknown_unknown_unknown"


def test_unpredictable_series_is_skipped_with_its_reason(sample: Load) -> None:
    module = sample()
    start, nan = 1_718_600_000, float("nan")
    series_list = [
        series("web", [0.5] * 60),
        series("new", [0.5] * 19, start + 41 * 30),
        series("lost", [nan] * 60),
        series("none", []),
        # The last sample is so old that the whole forecast lies in the past.
        series("ended", [0.5] * 40, start),
    ]
    results = list(module.predict(series_list))
    assert [result.reason for result in results if isinstance(result, Skipped)] == [
        "too_short",
        "too_short",
        "too_short",
        "ended",
    ]
    assert [result.labels["pod"] for result in results if isinstance(result, Score)] == ["web"]
    # With fewer missing steps than the horizon, a scrape may have failed.
    late = series("late", [0.5] * 52, start)
    assert len([result for result in module.predict([*series_list[:1], late]) if isinstance(result, Score)]) == 2
    assert list(module.predict([])) == []


def test_minimum_length_of_a_series_is_configurable(sample: Load) -> None:
    short = series("new", 0.1 * np.arange(15))
    assert isinstance(next(iter(sample().predict([short]))), Skipped)
    assert isinstance(next(iter(sample(MIN_LENGTH="12").predict([short]))), Score)


def test_forecast_horizon_is_configurable(sample: Load) -> None:
    rising = series("web", 0.01 * np.arange(60))
    near, far = (next(iter(sample(HORIZON_LENGTH=steps, ALPHA="1").predict([rising]))).value for steps in ("1", "60"))
    assert near == pytest.approx(100 / (1 + math.exp(0.4)), rel=1e-3)
    assert far > near


def test_pod_closest_to_the_threshold_comes_last_in_its_namespace(sample: Load) -> None:
    pods = [series(name, [load] * 30) for name, load in (("b", 0.9), ("c", 0.99), ("a", 0.2))]
    assert [score.labels["pod"] for score in sample().predict(pods)] == ["a", "b", "c"]
