"""Forecast of a series by an autoregression fitted for each request.

The model of the next value is a weighted sum of the last values, with the weights that fit the series so far best
(least squares). The forecast needs no model file and no state of earlier requests. For a series of some hundred samples
it takes a fraction of a millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dsf.scorer.result import Skipped
from dsf.scorer.series import Series

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast values, one per step after the last sample."""

    values: Array
    #: Seconds between two values, as between two samples.
    step: float
    #: Missing samples that were interpolated linearly.
    bridged: int
    #: True if the series is constant. The forecast is then constant, too.
    is_constant: bool


def forecast(series: Series, *, horizon: int = 10, lags: int = 10, least: int = 20) -> Forecast | Skipped:
    """Return the next `horizon` values, computed from the last `lags` values, or why there is no forecast.

    Samples that are NaN count as missing. Gaps of at most `lags` steps are interpolated. Samples before a longer gap
    are not used, since too little is known about how the two parts relate. The reason is `too_short` if there are fewer
    than `least` or fewer than `lags + 2` samples, and `gappy` if more samples are missing than present.

    The forecast stays within the range of the series plus its own width on either side: otherwise a series with a steep
    end would be extrapolated to values far outside.

    Raises ValueError when `horizon` or `lags` is not positive.
    """
    if horizon < 1 or lags < 1:
        msg = f"horizon and lags must be 1 or more, not {horizon} and {lags}"
        raise ValueError(msg)
    times, values = _select_distinct(series)
    distances = times[1:] - times[:-1]
    # The step is the distance that a quarter of the neighbouring samples do not exceed: most distances in a series with
    # gaps may be longer than the step.
    quarter = int(0.25 * distances.size)
    step = float(np.partition(distances, quarter)[quarter]) if distances.size else 0.0
    breaks = np.flatnonzero(distances > (lags + 1.5) * step)
    if breaks.size:
        times, values = times[breaks[-1] + 1 :], values[breaks[-1] + 1 :]
    if values.size < max(least, lags + 2):
        return Skipped("too_short")
    grid_indices = np.rint((times - times[0]) / step)
    if grid_indices[-1] >= 2 * values.size:
        return Skipped("gappy")
    peak = float(np.abs(values).max())
    grid = np.full(int(grid_indices[-1]) + 1, np.nan)
    # In units of the largest value, so that squares of huge values do not overflow.
    grid[grid_indices.astype(np.intp)] = values / (peak or 1.0)
    is_finite = np.isfinite(grid)
    bridged_count = int((~is_finite).sum())
    # Smaller differences are rounding errors of a constant series.
    if np.ptp(grid[is_finite]) <= 1e-9:
        return Forecast(np.full(horizon, values[-1]), step, bridged_count, is_constant=True)
    if is_finite.sum() < lags + 2:
        return Skipped("too_short")
    grid[~is_finite] = np.interp(np.flatnonzero(~is_finite), np.flatnonzero(is_finite), grid[is_finite])
    with np.errstate(over="ignore"):
        forecast_values = _continue_series(grid, is_finite, horizon, lags) * peak
    # An infinite value would not be a score.
    max_float = np.finfo(np.float64).max
    return Forecast(np.clip(forecast_values, -max_float, max_float), step, bridged_count, is_constant=False)


def _select_distinct(series: Series) -> tuple[Array, Array]:
    """Return times and values in order of time. If several samples have the same time, the last one is used."""
    finite = series.finite()
    times, values = finite.times, finite.values
    if (times[1:] > times[:-1]).all():
        return times, values
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    is_last = np.append(times[1:] > times[:-1], True)
    return times[is_last], values[is_last]


def _continue_series(grid: Array, is_finite: NDArray[np.bool_], horizon: int, lags: int) -> Array:
    """Return the `horizon` values that follow `grid`.

    Values that are not `is_finite` were interpolated: they are inputs of the model, but its weights are not fitted to
    them.
    """
    low, high = float(grid.min()), float(grid.max())
    middle, spread = float(grid.mean()), float(grid.std())
    scaled_values = (grid - middle) / spread
    rows = sliding_window_view(scaled_values, lags + 1)[is_finite[lags:]]
    means = rows.mean(axis=0)
    centred_rows = rows - means
    lagged_values, targets = centred_rows[:, :-1], centred_rows[:, -1]
    # Regularisation (ridge), in units of the variance of the series. Without regularisation, the weights of a series
    # that is short or repeats itself are undetermined. A larger factor than 1e-6 makes forecasts flat.
    weights = np.linalg.solve(
        lagged_values.T @ lagged_values + 1e-6 * len(rows) * np.eye(lags), lagged_values.T @ targets
    )
    base = means[-1] - means[:-1] @ weights
    predicted_values = np.concatenate([scaled_values[-lags:], np.empty(horizon)])
    bounds = ((np.array([2 * low - high, 2 * high - low]) - middle) / spread).tolist()
    for index in range(lags, lags + horizon):
        predicted_values[index] = min(
            max(base + predicted_values[index - lags : index] @ weights, bounds[0]), bounds[1]
        )
    return predicted_values[lags:] * spread + middle
