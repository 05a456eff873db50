"""Forecast of a series by an autoregression fitted for each request.

The next value is modelled as a weighted sum of the last ones; the weights are those that fit the series so far best
(least squares). The forecast needs no model file and no state of earlier requests, and takes a fraction of a
millisecond for a series of some hundred samples.
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
    #: Whether the series is constant; then the forecast is, too.
    is_constant: bool


def forecast(series: Series, *, horizon: int = 10, lags: int = 10, least: int = 20) -> Forecast | Skipped:
    """Return the next `horizon` values from the last `lags` ones, or why there is no forecast.

    Samples that are NaN count as missing. Shorter gaps are bridged; samples before a gap of more than `lags` steps are
    not used, since too little is known about how the two parts relate. Skipped is `too_short` with fewer
    than `least` samples (never fewer than `lags + 2`), and `gappy` when more samples are missing than present.

    The forecast stays within the range of the series plus its own width on either side: otherwise a series with a steep
    end would be extrapolated to values far outside.

    Raises ValueError when `horizon` or `lags` is not positive.
    """
    if horizon < 1 or lags < 1:
        msg = f"horizon and lags must be 1 or more, not {horizon} and {lags}"
        raise ValueError(msg)
    times, values = _select_distinct(series)
    apart = times[1:] - times[:-1]
    # A quarter of the neighbouring samples must be one step apart, so that the step follows from the times.
    nth = int(0.25 * apart.size)
    step = float(np.partition(apart, nth)[nth]) if apart.size else 0.0
    breaks = np.flatnonzero(apart > (lags + 1.5) * step)
    if breaks.size:
        times, values = times[breaks[-1] + 1 :], values[breaks[-1] + 1 :]
    if values.size < max(least, lags + 2):
        return Skipped("too_short")
    points = np.rint((times - times[0]) / step)
    if points[-1] >= 2 * values.size:
        return Skipped("gappy")
    peak = float(np.abs(values).max())
    whole = np.full(int(points[-1]) + 1, np.nan)
    # In units of the largest value, so that no square of a huge one overflows.
    whole[points.astype(np.intp)] = values / (peak or 1.0)
    is_finite = np.isfinite(whole)
    bridged = int((~is_finite).sum())
    # Constant: what varies is rounding.
    if np.ptp(whole[is_finite]) <= 1e-9:
        return Forecast(np.full(horizon, values[-1]), step, bridged, is_constant=True)
    if is_finite.sum() < lags + 2:
        return Skipped("too_short")
    whole[~is_finite] = np.interp(np.flatnonzero(~is_finite), np.flatnonzero(is_finite), whole[is_finite])
    with np.errstate(over="ignore"):
        continued = _continue_series(whole, is_finite, horizon, lags) * peak
    # Beyond the largest number is infinity, which is no score.
    largest = np.finfo(np.float64).max
    return Forecast(np.clip(continued, -largest, largest), step, bridged, is_constant=False)


def _select_distinct(series: Series) -> tuple[Array, Array]:
    """Times and values in order of time; of samples with equal times the last one in the request stays."""
    finite = series.finite()
    times, values = finite.times, finite.values
    if (times[1:] > times[:-1]).all():
        return times, values
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    is_last = np.append(times[1:] > times[:-1], True)
    return times[is_last], values[is_last]


def _continue_series(whole: Array, is_finite: NDArray[np.bool_], horizon: int, lags: int) -> Array:
    """Return the values that follow `whole`; values that are not `is_finite` were bridged and are not fitted."""
    low, high = float(whole.min()), float(whole.max())
    middle, spread = float(whole.mean()), float(whole.std())
    scaled = (whole - middle) / spread
    rows = sliding_window_view(scaled, lags + 1)[is_finite[lags:]]
    means = rows.mean(axis=0)
    centred = rows - means
    past, targets = centred[:, :-1], centred[:, -1]
    # Regularisation (ridge), in units of the variance of the series. Without it the weights of a series with too few
    # samples, or of one that repeats itself, are undetermined; more of it makes forecasts flat.
    weights = np.linalg.solve(past.T @ past + 1e-6 * len(rows) * np.eye(lags), past.T @ targets)
    base = means[-1] - means[:-1] @ weights
    line = np.concatenate([scaled[-lags:], np.empty(horizon)])
    bounds = ((np.array([2 * low - high, 2 * high - low]) - middle) / spread).tolist()
    for at in range(lags, lags + horizon):
        line[at] = min(max(base + line[at - lags : at] @ weights, bounds[0]), bounds[1])
    return line[lags:] * spread + middle
