"""Lines of backtests over time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dsf.backtest.drawing import SeriesLine, draw_lines

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "path"),
    [
        # A value is drawn until the next one; equal values are one segment.
        ([0, 0, 100], "M52.0,158.0 L600.0,158.0 L600.0,10.0"),
        ([0, 100, 100], "M52.0,158.0 L326.0,158.0 L326.0,10.0 L600.0,10.0"),
        # A new segment starts after a gap; a single last moment is a dot.
        ([0, None, 100], "M52.0,158.0 L326.0,158.0 M600.0,10.0 L600.0,10.0"),
        ([None, 0, 100], "M326.0,158.0 L600.0,158.0 L600.0,10.0"),
    ],
)
def test_lines_are_steps_with_gaps(values: list[float | None], path: str) -> None:
    start = START.timestamp()
    both = [SeriesLine("a", start, start + 120, values), SeriesLine("b", start, start + 120, [0, 100, 0])]
    plot = draw_lines(both)
    assert plot is not None
    assert [curve.name for curve in plot.curves] == ["a", "b"]
    assert plot.curves[0].path == path
    assert [tick.text for tick in plot.values] == ["0", "25", "50", "75", "100"]


def test_lines_without_a_value_are_no_plot() -> None:
    assert draw_lines([]) is None
    assert draw_lines([SeriesLine("a", 0, 60, [None, None])]) is None
