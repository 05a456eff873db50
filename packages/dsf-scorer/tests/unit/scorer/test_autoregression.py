"""Forecasts: continuation of series, and series that are not continued."""

from __future__ import annotations

import numpy as np
import pytest

from dsf.scorer import Forecast, Series, Skipped, forecast

NAN = float("nan")


def make_series(values: object, step: float = 30.0) -> Series:
    return Series.of({}, values, start=1_718_600_000, step=step)  # type: ignore[arg-type]


def drop_samples(series: Series, mask: object) -> Series:
    return Series(series.labels, series.times[mask], series.values[mask])  # type: ignore[index]


def forecast_of(series: Series, **options: int) -> Forecast:
    result = forecast(series, **options)
    assert isinstance(result, Forecast), result
    return result


def wave(at: object) -> object:
    return 3 + np.sin(2 * np.pi * np.asarray(at) / 16)


@pytest.mark.parametrize(
    "line",
    [lambda at: 2.0 + 0.5 * at, lambda at: wave(at), lambda at: 1e9 + 1e6 * np.cos(at / 3), lambda at: -0.001 * at],
)
def test_regular_series_is_continued(line: object) -> None:
    times = np.arange(70.0)
    expected = line(times)  # type: ignore[operator]
    result = forecast_of(make_series(expected[:60]))
    assert result.values == pytest.approx(expected[60:], rel=0.01, abs=0.01 * float(np.ptp(expected)))
    assert (result.step, result.bridged, result.is_constant) == (30, 0, False)


def test_weights_equal_those_of_least_squares() -> None:
    values = np.random.default_rng(3).normal(10, 2, 120).cumsum()
    rows = np.lib.stride_tricks.sliding_window_view(values, 11)
    past = np.column_stack([rows[:, :-1], np.ones(len(rows))])
    weights = np.linalg.lstsq(past, rows[:, -1], rcond=None)[0]
    line = values.tolist()
    for _ in range(10):
        line.append(float(np.append(line[-10:], 1) @ weights))
    assert forecast_of(make_series(values)).values == pytest.approx(line[-10:], rel=1e-3)


@pytest.mark.parametrize("value", [0.0, 5.0, -1e300, 5e-324])
def test_constant_series_is_continued_unchanged(value: float) -> None:
    result = forecast_of(make_series([value] * 30))
    assert result.is_constant
    assert result.values.tolist() == [value] * 10


def test_rounding_is_no_change() -> None:
    result = forecast_of(make_series([0.1 + 1e-17 * at for at in range(30)]))
    assert result.is_constant


@pytest.mark.parametrize("is_missing", [lambda at: at % 3 == 0, lambda at: (at > 20) & (at < 30), lambda at: at == 58])
def test_short_gaps_are_bridged(is_missing: object) -> None:
    times = np.arange(60)
    missing_mask = is_missing(times)  # type: ignore[operator]
    expected = wave(np.arange(60, 70))
    result = forecast_of(drop_samples(make_series(wave(times)), ~missing_mask))
    assert result.step == 30
    # Missing samples at the beginning are no gap.
    assert result.bridged == missing_mask[1:].sum()
    assert result.values == pytest.approx(expected, abs=0.5)
    as_nan = forecast_of(make_series(np.where(missing_mask, NAN, wave(times))))
    assert as_nan.values.tolist() == result.values.tolist()


def test_forecast_ignores_values_before_a_long_gap() -> None:
    times = np.arange(100)
    series = make_series(np.where(times < 50, 1000.0, wave(times)))
    mask = (times < 40) | (times >= 55)
    assert (
        forecast_of(drop_samples(series, mask)).values.tolist()
        == forecast_of(drop_samples(series, times >= 55)).values.tolist()
    )


def test_too_short() -> None:
    assert forecast(make_series([])) == Skipped("too_short")
    assert forecast(make_series([1.0])) == Skipped("too_short")
    assert forecast(make_series(range(19))) == Skipped("too_short")
    assert forecast(make_series([*range(19), NAN])) == Skipped("too_short")
    assert isinstance(forecast(make_series(range(20))), Forecast)
    assert forecast(make_series(range(30)), least=31) == Skipped("too_short")
    # A fit needs the lags and two samples.
    assert forecast(make_series([1, 2] * 5 + [1]), least=1) == Skipped("too_short")
    assert isinstance(forecast(make_series([1, 2] * 6), least=1), Forecast)


def test_too_many_samples_are_missing() -> None:
    # Half of the samples are in pairs one step apart, with nine missing between pairs.
    series = make_series(range(300))
    assert forecast(drop_samples(series, np.arange(300) % 10 < 2)) == Skipped("gappy")


def test_samples_at_one_time_and_in_any_order() -> None:
    series = make_series(wave(np.arange(60)))
    shuffled = np.random.default_rng(1).permutation(60)
    assert forecast_of(drop_samples(series, shuffled)).values.tolist() == forecast_of(series).values.tolist()
    twice = Series({}, np.repeat(series.times, 2), np.column_stack([series.values * 0, series.values]).ravel())
    assert forecast_of(twice).values.tolist() == forecast_of(series).values.tolist()
    at_once = Series({}, np.zeros(50), np.arange(50.0))
    assert forecast(at_once) == Skipped("too_short")


def test_times_that_are_not_quite_even() -> None:
    series = make_series(wave(np.arange(60)))
    late = Series({}, series.times + np.random.default_rng(2).uniform(0, 5, 60), series.values)
    assert forecast_of(late).values == pytest.approx(forecast_of(series).values, abs=0.3)


def test_forecast_of_a_steep_end_is_bounded() -> None:
    result = forecast_of(make_series([0.0] * 40 + [2.0**at for at in range(12)]))
    assert result.values.max() <= 2 * 2**11
    assert result.values.min() >= -(2**11)


@pytest.mark.parametrize("peak", [1.7e308, 1e-300])
def test_any_float_is_accepted(peak: float) -> None:
    with np.errstate(all="raise", under="ignore"):
        result = forecast_of(make_series(peak * np.array([1.0, -1.0] * 20)))
    assert result.values.size == 10


def test_lags_and_horizon() -> None:
    assert forecast_of(make_series(wave(np.arange(40))), horizon=3, lags=4, least=6).values.size == 3
    for options in ({"horizon": 0}, {"lags": 0}):
        with pytest.raises(ValueError, match="must be 1 or more"):
            forecast(make_series(range(40)), **options)


@pytest.mark.parametrize("sign", [1, -1])
def test_forecasts_of_huge_values_are_finite(sign: int) -> None:
    values = [sign * 1.79e308 * share for share in np.linspace(0.1, 1.0, 60)]
    result = forecast(Series.of({}, values), horizon=20)
    assert isinstance(result, Forecast)
    assert np.isfinite(result.values).all()
    assert abs(result.values[-1]) >= 1.7e308
