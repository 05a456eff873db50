"""Windows of samples: the values at each point in time, and the limits."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dsf.sources.window import Grid, OutdatedSampleError, Window, WindowBudget, WindowFullError, format_number

A, B = {"__name__": "m", "pod": "a"}, {"__name__": "m", "pod": "b"}


def window(series: int = 10, samples: int = 100) -> Window:
    return Window(WindowBudget(series, samples))


def fill(sample_window: Window, *samples: tuple[float, float | None], labels: dict[str, str] = A) -> Window:
    for time, value in samples:
        sample_window.add(tuple(labels.items()), lambda: labels, time, value)
    return sample_window


def selected_series(sample_window: Window, grid: Grid) -> list[Any]:
    return [
        {"metric": series.labels, "values": [[time, format_number(value)] for time, value in points]}
        for series, points in sample_window.select_series(lambda _: True, grid, lambda: None)
    ]


def values(sample_window: Window, grid: Grid) -> list[Any]:
    return [point for series in selected_series(sample_window, grid) for point in series["values"]]


def test_each_point_has_the_newest_sample_before_it() -> None:
    sample_window = fill(window(), (101.0, 1.0), (130.0, 2.5), (160.9, 3.0))
    assert selected_series(sample_window, Grid(160, 60, 20)) == [
        {"metric": A, "values": [[120, "1"], [140, "2.5"], [160, "3"]]},
    ]


def test_last_point_is_the_end_for_any_step() -> None:
    assert list(Grid(100, 50, 20).times) == [60, 80, 100]
    assert list(Grid(100, 0, 0).times) == [100]


def test_sample_counts_until_the_lookback_ends() -> None:
    sample_window = fill(window(), (0.0, 1.0))
    assert values(sample_window, Grid(400, 400, 100, lookback=250)) == [[0, "1"], [100, "1"], [200, "1"]]


def test_ended_series_has_a_gap() -> None:
    sample_window = fill(window(), (100.0, 1.0), (120.0, None), (160.0, 2.0))
    assert values(sample_window, Grid(180, 80, 20)) == [[100, "1"], [160, "2"], [180, "2"]]


def test_series_without_a_point_is_omitted() -> None:
    sample_window = fill(fill(window(), (1000.0, 1.0)), (100.0, 5.0), labels=B)
    assert [series["metric"] for series in selected_series(sample_window, Grid(110, 20, 10))] == [B]


def test_numbers_are_written_as_prometheus_does() -> None:
    texts = [format_number(value) for value in (1.0, 0.25, 1e21, math.nan, math.inf, -math.inf, -3.0)]
    assert texts == ["1", "0.25", "1e+21", "NaN", "+Inf", "-Inf", "-3"]


def test_repeated_sample_is_ignored_and_an_older_one_is_refused() -> None:
    sample_window = fill(window(), (100.0, 1.0), (100.0, 9.0))
    with pytest.raises(OutdatedSampleError):
        fill(sample_window, (99.0, 3.0))
    assert values(sample_window, Grid(100, 0, 0)) == [[100, "1"]]


def test_series_missing_from_an_update_ends() -> None:
    sample_window = window()
    sample_window.update({"a": (A, 100.0, 1.0), "b": (B, 100.0, 2.0)}, 100.0)
    sample_window.update({"a": (A, 110.0, 1.0)}, 110.0)
    assert {
        series["metric"]["pod"]: len(series["values"]) for series in selected_series(sample_window, Grid(120, 20, 10))
    } == {"a": 3, "b": 1}


def test_failed_and_successful_updates_in_the_same_second_are_both_kept() -> None:
    sample_window = window()
    sample_window.update({"a": (A, 100.0, 1.0)}, 100.0)
    sample_window.end_all(110.0)
    assert values(sample_window, Grid(110, 10, 10)) == [[100, "1"]]
    sample_window.update({"a": (A, 110.0, 2.0)}, 110.0)
    assert values(sample_window, Grid(110, 10, 10)) == [[100, "1"], [110, "2"]]


@pytest.mark.parametrize(("again", "times"), [(110.0, [100, 110, 120, 130]), (120.0, [100, 120, 130])])
def test_sample_with_its_own_timestamp_continues_after_a_failed_update(again: float, times: list[int]) -> None:
    sample_window = window()
    sample_window.update({"a": (A, 95.0, 1.0)}, 100.0)
    sample_window.end_all(110.0)
    # The exporter has measured no new value meanwhile.
    for now in (again, 130.0):
        sample_window.update({"a": (A, 95.0, 1.0)}, now)
    assert [time for time, _ in values(sample_window, Grid(130, 30, 10))] == times
    sample_window.update({"a": (A, 125.0, 2.0)}, 140.0)
    assert values(sample_window, Grid(140, 0, 0)) == [[140, "2"]]


def test_both_bounds_hold_and_name_their_setting() -> None:
    budget = WindowBudget(1, 3)
    sample_window = fill(Window(budget), (1.0, 1.0), (2.0, 1.0))
    with pytest.raises(WindowFullError, match=r"1 series already .DSF_AGENT_WINDOW_SERIES"):
        fill(sample_window, (1.0, 1.0), labels=B)
    fill(sample_window, (3.0, 1.0))
    with pytest.raises(WindowFullError, match=r"3 samples already .DSF_AGENT_WINDOW_SERIES"):
        fill(sample_window, (4.0, 1.0))
    assert (budget.series, budget.samples) == (1, 3)
    sample_window.clear()
    assert (budget.series, budget.samples, len(sample_window)) == (0, 0, 0)


def test_forgetting_gives_the_room_back() -> None:
    budget = WindowBudget(10, 1000)
    sample_window = fill(Window(budget), *((float(time), 1.0) for time in range(100)))
    sample_window.end_all(100.0)
    sample_window.forget(lambda _: 5.0)
    assert budget.samples == 101, "moving an array for five samples is not worth it"
    sample_window.forget(lambda _: 60.0)
    assert budget.samples == 41
    assert values(sample_window, Grid(100, 2, 1)) == [[98, "1"], [99, "1"]]
    sample_window.forget(lambda _: 1000.0)
    assert (budget.series, budget.samples) == (0, 0)


def test_too_long_labels_are_refused_and_use_no_memory() -> None:
    budget = WindowBudget(10, 10)
    with pytest.raises(ValueError, match="more than 4096 bytes"):
        fill(Window(budget), (1.0, 1.0), labels={"x": "y" * 5000})
    assert (budget.series, budget.samples) == (0, 0)


def test_selection_runs_its_check_before_each_series() -> None:
    sample_window = fill(fill(window(), (100.0, 1.0)), (100.0, 2.0), labels=B)
    looked_at: list[object] = []

    def is_selected(labels: object) -> bool:
        looked_at.append(labels)
        return False

    def check() -> None:
        if looked_at:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        list(sample_window.select_series(is_selected, Grid(100, 0, 0), check))
    assert len(looked_at) == 1


def test_slightly_rewound_clock_keeps_values_at_their_times() -> None:
    budget = WindowBudget(10, 100)
    sample_window = Window(budget)
    for now in (1000.0, 1060.0, 1120.0, 1180.0):
        sample_window.update({"a": (A, now, now), "b": (B, now, now)}, now)
    for now in (1030.0, 1090.0):
        sample_window.update({"a": (A, now, -now)}, now)
        assert values(sample_window, Grid(int(now), 0, 0)) == [[int(now), f"-{now:.0f}"]]
    assert selected_series(sample_window, Grid(1090, 90, 30)) == [
        {"metric": A, "values": [[1000, "1000"], [1030, "-1030"], [1060, "-1030"], [1090, "-1090"]]},
        {"metric": B, "values": [[1000, "1000"]]},
    ]
    sample_window.end_all(900.0)
    assert (len(sample_window), budget.series, budget.samples) == (0, 0, 0)


@pytest.mark.parametrize("goes_on", [True, False])
def test_rewound_clock_hides_no_new_samples(goes_on: bool) -> None:
    budget = WindowBudget(10, 100)
    sample_window = Window(budget)
    for now in (100_000.0, 100_060.0):
        sample_window.update({"a": (A, now, 1.0), "b": (B, now, 1.0)}, now)
    if goes_on:
        sample_window.update({"a": (A, 93_000.0, 2.0)}, 93_000.0)
        assert selected_series(sample_window, Grid(93_000, 60, 60)) == [{"metric": A, "values": [[93_000, "2"]]}]
    else:
        sample_window.end_all(93_000.0)
    assert ("b" in sample_window, budget.series, budget.samples) == (False, goes_on, goes_on)
    # A sample slightly ahead may come from another clock.
    sample_window.update({"a": (A, 93_200.0, 3.0)}, 93_060.0)
    assert values(sample_window, Grid(93_200, 0, 0)) == [[93_200, "3"]]


def test_labels_are_measured_in_utf_8() -> None:
    sample_window = window()
    fill(sample_window, (1.0, 1.0), labels={"__name__": "m", "pod": "節" * 1300})
    with pytest.raises(ValueError, match="more than 4096 bytes"):
        fill(sample_window, (1.0, 1.0), labels={"__name__": "m", "pod": "節" * 1400})
    fill(sample_window, (1.0, 1.0), labels={"__name__": "m", "pod": "\ud800"})
    assert [series["metric"]["pod"][0] for series in selected_series(sample_window, Grid(1, 0, 0))] == ["節", "\ud800"]


def test_failed_update_leaves_a_gap_in_all_series() -> None:
    sample_window = window(series=2)
    labels = [{"__name__": "m", "pod": str(number)} for number in range(3)]
    sample_window.update({0: (labels[0], 10.0, 1.0)}, 10.0)
    with pytest.raises(WindowFullError):
        sample_window.update({number: (series_labels, 20.0, 2.0) for number, series_labels in enumerate(labels)}, 20.0)
    sample_window.end_all(20.0)
    sample_window.update({0: (labels[0], 30.0, 3.0)}, 30.0)
    assert selected_series(sample_window, Grid(30, 20, 10)) == [{"metric": labels[0], "values": [[10, "1"], [30, "3"]]}]


def test_memory_of_labels_is_limited() -> None:
    sample_window = window(10)
    # Texts of Python take 50 bytes more than their characters.
    labels = {f"label{number}": f"{number:04}" for number in range(200)}
    many_samples = {("pod", number): (labels, 1.0, 1.0) for number in range(10)}
    with pytest.raises(WindowFullError, match="holds labels of 81920 bytes already") as refusal:
        sample_window.update(many_samples, 1.0)
    assert refusal.value.resource == "bytes"
    assert 1 < len(sample_window) < 10
    assert 40_000 < sample_window.count("bytes") <= 81920
    # Removed series make room again.
    sample_window.clear()
    assert sample_window.count("bytes") == 0
    sample_window.add("pod", lambda: labels, 2.0, 1.0)


def test_size_of_a_key_counts() -> None:
    sample_window = window(1)
    with pytest.raises(WindowFullError):
        sample_window.add(("pod", "\N{GRINNING FACE}" * 2048), lambda: A, 1.0, 1.0)


def test_refused_series_leaves_the_budget_unchanged() -> None:
    budget = WindowBudget(1, 10)
    sample_window = Window(budget)
    for labels in ({"x": "y" * 5000}, {f"label{number}": f"{number:03}" for number in range(150)}):
        with pytest.raises((ValueError, WindowFullError)):
            sample_window.add("pod", lambda labels=labels: labels, 1.0, 1.0)  # type: ignore[misc]
    assert (budget.series, budget.samples, budget.bytes) == (0, 0, 0)
