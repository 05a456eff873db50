"""Series: gaps, even grids, finite samples, frames."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np
import pytest

from dsf.scorer import Gap, Score, Series, to_frame

NAN = float("nan")


def series(times: list[float], values: list[float] | None = None) -> Series:
    return Series({"pod": "web"}, np.array(times, float), np.array(values or [1.0] * len(times), float))


def test_series_of_builds_series_for_tests() -> None:
    built_series = Series.of({"a": "b"}, [1, float("inf")], start=100, step=5)
    assert built_series.times.tolist() == [100, 105]
    assert built_series.values[0] == 1
    assert math.isnan(built_series.values[1])
    with pytest.raises(TypeError, match="must be text"):
        Series.of({"a": 1}, [])  # type: ignore[dict-item]


def test_finite() -> None:
    finite_series = series([1, 2, 3], [NAN, 5, NAN]).finite()
    assert (finite_series.labels, finite_series.times.tolist(), finite_series.values.tolist()) == (
        {"pod": "web"},
        [2],
        [5],
    )
    assert not finite_series.is_empty
    assert len(finite_series) == 1
    assert series([1], [NAN]).finite().is_empty
    whole = series([1, 2])
    assert whole.finite() is whole


@pytest.mark.parametrize(
    ("times", "gaps"),
    [
        ([], []),
        ([0], []),
        ([0, 60, 120], []),
        ([0, 65, 119], []),
        ([0, 60, 180, 240], [Gap(60, 180, 1)]),
        ([240, 0, 60], [Gap(60, 240, 2)]),
        ([0, 95], [Gap(0, 95, 1)]),
        ([0, 600, 660, 1200], [Gap(0, 600, 9), Gap(660, 1200, 8)]),
    ],
)
def test_gaps(times: list[float], gaps: list[Gap]) -> None:
    assert series(times).gaps(60) == gaps


def test_regular_puts_nan_where_samples_are_missing() -> None:
    grid = series([0, 62, 180], [1, 2, 3]).regular(60)
    assert grid.times.tolist() == [0, 60, 120, 180]
    assert grid.values[[0, 1, 3]].tolist() == [1, 2, 3]
    assert math.isnan(grid.values[2])
    assert grid.gaps(60) == []


def test_regular_sorts_and_the_later_sample_of_one_point_stays() -> None:
    assert series([60, 0, 61], [1, 2, 3]).regular(60).values.tolist() == [2, 3]
    assert series([]).regular(60).is_empty


def test_regular_grid_is_bounded() -> None:
    with pytest.raises(ValueError, match="more than 1000000 points"):
        series([0, 1e15]).regular(1)


@pytest.mark.parametrize("step", [0, -1, NAN])
def test_steps_are_positive(step: float) -> None:
    with pytest.raises(ValueError, match="more than 0"):
        series([1]).gaps(step)
    with pytest.raises(ValueError, match="more than 0"):
        series([1]).regular(step)


def test_score_and_skip() -> None:
    web_series = series([1])
    assert web_series.score(np.float64(5), meta="x") == Score(5.0, {"pod": "web", "meta": "x"})
    assert web_series.score(1, pod="other").labels == {"pod": "other"}
    assert web_series.skip("too_short").reason == "too_short"


def test_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = series([0, 60], [1, 2]).frame()
    assert frame["value"].tolist() == [1, 2]
    assert frame.index[1] == pandas.Timestamp("1970-01-01T00:01:00Z")
    long = to_frame([series([0], [1]), Series.of({"node": "n"}, [2, 3])])
    assert list(long.columns) == ["node", "pod", "time", "value"]
    assert long["pod"].tolist() == ["web", "", ""]
    assert long["value"].tolist() == [1, 2, 3]
    assert to_frame([]).empty


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def blocked(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", blocked)
    with pytest.raises(ImportError, match="pip install pandas"):
        series([1]).frame()
