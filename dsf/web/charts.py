"""Computes the coordinates of bars and charts for the SVG elements in the templates.

SVG attributes are used instead of styles, because the content security policy forbids inline styles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from dsf.fleet.views import CycleView, StateCounts
from dsf.web.states import STATES, State


@dataclass(frozen=True)
class Segment:
    """The part of one state in a bar of 100 units."""

    state: State
    count: int
    x: float
    width: float


def make_bar(counts: StateCounts) -> list[Segment]:
    """Return a bar of 100 units as one segment per state, in the order of STATES.

    States without pairs are left out. Others get at least 1 unit; the bar is then scaled to 100.
    """
    state_counts = [(state, int(getattr(counts, name))) for name, state in STATES.items()]
    visible_counts = [(state, count) for state, count in state_counts if count > 0]
    total = sum(count for _, count in visible_counts)
    widths = [max(1.0, 100 * count / total) for _, count in visible_counts]
    scale = 100 / sum(widths) if widths else 1.0
    segments, x = [], 0.0
    for (state, count), width in zip(visible_counts, widths, strict=True):
        segments.append(Segment(state, count, round(x, 2), round(width * scale, 2)))
        x += width * scale
    return segments


@dataclass(frozen=True)
class AxisMark:
    """A mark on an axis: its coordinate and its text."""

    at: float
    text: str


@dataclass(frozen=True)
class Dot:
    """The score of one cycle as a dot in a chart."""

    cycle: CycleView
    x: float
    y: float


@dataclass(frozen=True)
class Curve:
    """A line, which may have gaps, as the attribute `d` of an SVG path."""

    name: str
    path: str


#: Intended maximum of marks of an axis. Round numbers may need one more.
_MAX_MARKS: Final = 5
#: Possible distances of two marks on the time axis, in seconds.
_TIME_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 43_200, 86_400)


class Chart:
    """A chart: marks of the axes, curves and dots. It converts times and numbers to coordinates in a picture.

    All coordinates are in units of the picture. The plot extends from `left`, `top` to `right`, `bottom`.
    """

    width: Final = 640.0
    height: Final = 200.0
    left: Final = 52.0
    top: Final = 10.0
    #: Leaves room for half of the longest text below the last mark, which contains a date.
    right: Final = 600.0
    bottom: Final = 158.0

    def __init__(self, start: float, end: float, numbers: Sequence[float]) -> None:
        """Scale the axes for these numbers between two times (unix seconds). `numbers` must not be empty."""
        self._start, self._end = start, end
        marks = _compute_value_marks(min(numbers), max(numbers))
        self._low, self._high = marks[0], marks[-1]
        self.values = [AxisMark(self.compute_y(mark), f"{mark:.6g}") for mark in marks]
        self.times = [AxisMark(self.compute_x(moment), text) for moment, text in _compute_time_marks(start, end)]
        self.curves: list[Curve] = []
        self.dots: list[Dot] = []

    def compute_x(self, moment: float) -> float:
        """Return the horizontal coordinate of a time (unix seconds)."""
        fraction = (moment - self._start) / (self._end - self._start) if self._end > self._start else 0.5
        return round(self.left + fraction * (self.right - self.left), 1)

    def compute_y(self, number: float) -> float:
        """Return the vertical coordinate of a number."""
        fraction = (number - self._low) / (self._high - self._low)
        return round(self.bottom - fraction * (self.bottom - self.top), 1)


def make_score_chart(cycles: Sequence[CycleView]) -> Chart | None:
    """Return a chart of the scores of cycles; None for fewer than two scores. `cycles` must be newest first."""
    scored_cycles = [cycle for cycle in reversed(cycles) if cycle.value is not None]
    if len(scored_cycles) < 2:
        return None
    numbers = [cycle.value for cycle in scored_cycles if cycle.value is not None]
    chart = Chart(scored_cycles[0].at.timestamp(), scored_cycles[-1].at.timestamp(), numbers)
    path_commands: list[str] = []
    command = "M"
    for cycle in reversed(cycles):
        if cycle.value is None:
            # A cycle without a score leaves a gap, because the next score starts a new line.
            command = "M"
            continue
        x, y = chart.compute_x(cycle.at.timestamp()), chart.compute_y(cycle.value)
        chart.dots.append(Dot(cycle, x, y))
        path_commands.append(f"{command}{x},{y}")
        command = "L"
    chart.curves.append(Curve("score", " ".join(path_commands)))
    return chart


def _compute_value_marks(low: float, high: float) -> list[float]:
    """Return round numbers at equal distances, from at most `low` to at least `high`."""
    if low == high:
        margin = max(1.0, abs(low) / 100)
        low, high = low - margin, high + margin
    min_step = (high - low) / (_MAX_MARKS - 1)
    power = 10.0 ** math.floor(math.log10(min_step))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= min_step * (1 - 1e-9))
    return [number * step for number in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _compute_time_marks(start: float, end: float) -> list[tuple[float, str]]:
    """Return round times in UTC between `start` and `end`, each with its text.

    Returns `start` and `end` themselves if there are fewer than two round times.
    """
    span = end - start
    step = next(
        (seconds for seconds in _TIME_STEPS if span / seconds <= _MAX_MARKS),
        math.ceil(span / _MAX_MARKS / 86_400) * 86_400,
    )
    moments = [float(moment) for moment in range(math.ceil(start / step) * step, math.floor(end) + 1, step)]
    if len(moments) < 2:
        moments = [start, end]
    time_format = "%m-%d %H:%M" if span >= 86_400 else "%H:%M" if step >= 60 else "%H:%M:%S"
    return [(moment, datetime.fromtimestamp(moment, UTC).strftime(time_format)) for moment in moments]
