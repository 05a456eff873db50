"""CPU of forecasting 1,000 series of 120 samples, as simple-prediction-scorer does, beside numpy's own least squares.

    python -m bench.forecast [--quick] [--json FILE]

Held against the plain way that a textbook has: a matrix of the last ten values and a column of ones,
`numpy.linalg.lstsq`, and ten steps on. The plain way handles no gaps, NaN, constant series or bounds. Both take turns
in one process and get the same series; their forecasts are compared, so that neither is fast by being wrong. The limit
is the time of a request, far below the interval of 30 seconds; the ratio shows the cost of the checks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bench.common import Figure, Measurement, format_spread, run
from dsf.scorer import Forecast, Series, forecast

SERIES, SAMPLES = 1000, 120
LAGS, HORIZON = 10, 10
#: Rounds, each with all series in both ways.
ROUNDS, QUICK_ROUNDS = 9, 3
#: Maximum relative difference of equal forecasts: our regularisation is small, but not zero.
_SAME = 0.01

Array = NDArray[np.float64]


def make_series() -> list[Series]:
    """Return series with a daily rhythm, a trend and noise."""
    random = np.random.default_rng(1)
    at = np.arange(SAMPLES)
    return [
        Series.of(
            {"pod": f"web-{index}"},
            5
            + np.sin(at / random.uniform(3, 30) + index)
            + random.normal(0, 0.01) * at
            + random.normal(0, 0.2, SAMPLES),
            start=1_718_600_000,
            step=30,
        )
        for index in range(SERIES)
    ]


def forecast_by_scorer(series: Series) -> Array:
    """Return the scorer's forecast. Raises TypeError if it has none."""
    prediction = forecast(series, horizon=HORIZON, lags=LAGS)
    if not isinstance(prediction, Forecast):
        raise TypeError(prediction.reason)
    return prediction.values


def forecast_by_textbook(series: Series) -> Array:
    """Return the forecast of the textbook's method."""
    values = series.values
    past = np.column_stack([values[lag : lag - LAGS] for lag in range(LAGS)] + [np.ones(values.size - LAGS)])
    weights = np.linalg.lstsq(past, values[LAGS:], rcond=None)[0]
    line = list(values[-LAGS:])
    for _ in range(HORIZON):
        line.append(float(np.dot(weights[:LAGS], line[-LAGS:]) + weights[LAGS]))
    return np.array(line[LAGS:])


def seconds(function: Callable[[Series], Array], all_series: list[Series]) -> float:
    """Return the CPU seconds for all series."""
    started = time.process_time()
    for series in all_series:
        function(series)
    return time.process_time() - started


def count_differences(all_series: list[Series]) -> int:
    """Return the number of series for which the two forecasts differ."""
    return sum(
        not np.allclose(
            forecast_by_scorer(series), forecast_by_textbook(series), atol=_SAME * float(np.ptp(series.values))
        )
        for series in all_series
    )


def measure(quick: bool) -> Measurement:
    """Measure both in turns."""
    all_series = make_series()
    wrong = count_differences(all_series)
    if wrong:
        raise RuntimeError(f"{wrong} of {SERIES} forecasts are not those of least squares")
    rounds = QUICK_ROUNDS if quick else ROUNDS
    pairs = [
        (seconds(forecast_by_scorer, all_series), seconds(forecast_by_textbook, all_series)) for _ in range(rounds)
    ]
    scorer_milliseconds, textbook_milliseconds = ([1000 * pair[index] for pair in pairs] for index in (0, 1))
    ratios = [pair[0] / pair[1] for pair in pairs]
    figure = Figure(
        f"forecast of {SERIES:,} series x {SAMPLES} samples, CPU",
        format_spread(scorer_milliseconds, "ms", 0),
        float(np.median(ratios)),
        "x",
        f"numpy.linalg.lstsq without checks, {format_spread(textbook_milliseconds, 'ms', 0)}",
        upper_limit=3.0,
    )
    return [figure], {"ours_ms": scorer_milliseconds, "textbook_ms": textbook_milliseconds, "ratios": ratios}


if __name__ == "__main__":
    sys.exit(run(__doc__, measure))
