"""Charts of the last cycles."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from dsf.fleet.views import CycleView
from dsf.web.charts import Chart, make_score_chart
from dsf.web.rendering import get_environment


def _columns(number: int) -> list[float]:
    """Return the positions of the columns of this many cycles."""
    cycles = [
        CycleView(run_id=str(cycle_number), at=START, outcome="ok", timings={"fetch": 1.0, "score": 3.0})
        for cycle_number in range(number)
    ]
    html = str(get_environment().get_template("macros.html").module.timeline(cycles, 4.0))  # type: ignore[attr-defined]
    assert html.count('class="k-fetch"') == html.count('y="16.0" width') == number
    return [float(x) for x in re.findall(r'class="k-fetch" x="([\d.]+)" y="94.0"', html)]


def test_few_cycles_stand_where_the_newest_is_expected() -> None:
    """Aligns columns at the right end, which narrow screens show."""
    assert _columns(3) == [850.0, 900.0, 950.0]
    many = _columns(40)
    assert (many[0], many[-1]) == (0.0, 975.0)


START = datetime(2026, 1, 1, 12, 0, 7, tzinfo=UTC)


def _chart(values: list[float | None], seconds: float = 30) -> Chart | None:
    """Return the positions of cycles at this distance, oldest first."""
    cycles = [
        CycleView.model_construct(run_id=str(number), at=START + timedelta(seconds=number * seconds), value=value)
        for number, value in enumerate(values)
    ]
    return make_score_chart(cycles[::-1])


@pytest.mark.parametrize(
    ("values", "seconds", "numbers", "times"),
    [
        ([92.0, 92.0], 30, ["91", "91.5", "92", "92.5", "93"], ["12:00:10", "12:00:20", "12:00:30"]),
        ([0.0, 50.0, 100.0], 60, ["0", "25", "50", "75", "100"], ["12:00:30", "12:01:00", "12:01:30", "12:02:00"]),
        ([-7.0, 13.0] * 25, 600, ["-10", "-5", "0", "5", "10", "15"], ["14:00", "16:00", "18:00", "20:00"]),
        ([0.001, 0.002], 1, ["0.001", "0.00125", "0.0015", "0.00175", "0.002"], ["12:00:07", "12:00:08"]),
        (
            [1.0, 2.0, 3.0],
            86_400,
            ["1", "1.5", "2", "2.5", "3"],
            ["01-02 00:00", "01-02 12:00", "01-03 00:00", "01-03 12:00"],
        ),
        ([1.0, 2.0], 0, ["1", "1.25", "1.5", "1.75", "2"], ["12:00:07", "12:00:07"]),
        (
            [1.76433e18, 1.76433e18],
            30,
            ["1.74e+18", "1.75e+18", "1.76e+18", "1.77e+18", "1.78e+18", "1.79e+18"],
            ["12:00:10", "12:00:20", "12:00:30"],
        ),
    ],
)
def test_both_axes_have_round_numbers(
    values: list[float | None], seconds: float, numbers: list[str], times: list[str]
) -> None:
    chart = _chart(values, seconds)
    assert chart is not None
    assert [tick.text for tick in chart.values] == numbers
    assert [tick.text for tick in chart.times] == times
    assert all(a.at > b.at for a, b in pairwise(chart.values)), "greater values are higher"
    assert len(chart.dots) == len(values)
    inside = [(chart.left <= dot.x <= chart.right, chart.top <= dot.y <= chart.bottom) for dot in chart.dots]
    assert set(inside) == {(True, True)}
    assert all(chart.left <= tick.at <= chart.right for tick in chart.times)


def test_cycle_without_a_score_is_a_gap() -> None:
    chart = _chart([1.0, 2.0, None, 3.0, 4.0, None, 5.0])
    assert chart is not None
    [curve] = chart.curves
    assert [len(line.split()) for line in curve.path.split("M")] == [0, 2, 2, 1]
    assert len(chart.dots) == 5


def test_single_score_draws_no_chart() -> None:
    assert _chart([1.0]) is _chart([None, 1.0]) is _chart([]) is None
