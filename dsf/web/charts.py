"""Pictures of the pages as numbers for SVG elements. The templates draw them: no style attribute is allowed here."""

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
    """The part of a state in a bar, in units of a hundred."""

    state: State
    count: int
    x: float
    width: float


def bar(counts: StateCounts) -> list[Segment]:
    """Return a bar of 100 units by state, in the order of STATES; each present state is at least one unit wide."""
    numbers = [(state, int(getattr(counts, name))) for name, state in STATES.items()]
    visible_states = [(state, number) for state, number in numbers if number > 0]
    total = sum(number for _, number in visible_states)
    widths = [max(1.0, 100 * number / total) for _, number in visible_states]
    scale = 100 / sum(widths) if widths else 1.0
    segments, x = [], 0.0
    for (state, number), width in zip(visible_states, widths, strict=True):
        segments.append(Segment(state, number, round(x, 2), round(width * scale, 2)))
        x += width * scale
    return segments


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: its place in the picture, and its text."""

    at: float
    text: str


@dataclass(frozen=True)
class Dot:
    """One score."""

    cycle: CycleView
    x: float
    y: float


@dataclass(frozen=True)
class Curve:
    """A line as data of an SVG path, which may have gaps."""

    name: str
    path: str


#: Most marks of an axis.
_MOST_MARKS: Final = 5
#: Seconds between two marks on the axis of times.
_TIME_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 43_200, 86_400)


class Chart:
    """Numbers over time, with both axes. Units of the picture; the plot is from `left`, `top` to `right`, `bottom`."""

    width: Final = 640.0
    height: Final = 200.0
    left: Final = 52.0
    top: Final = 10.0
    #: Half of the longest text of a mark, with a date, has room beside it.
    right: Final = 600.0
    bottom: Final = 158.0

    def __init__(self, first: float, last: float, numbers: Sequence[float]) -> None:
        """For these numbers between two times (unix seconds)."""
        self._first, self._last = first, last
        steps = _value_steps(min(numbers), max(numbers))
        self._low, self._high = steps[0], steps[-1]
        self.values = [Tick(self.y(step), f"{step:.6g}") for step in steps]
        self.times = [Tick(self.x(moment), text) for moment, text in _time_steps(first, last)]
        self.curves: list[Curve] = []
        self.dots: list[Dot] = []

    def x(self, moment: float) -> float:
        """Where a time is."""
        part = (moment - self._first) / (self._last - self._first) if self._last > self._first else 0.5
        return round(self.left + part * (self.right - self.left), 1)

    def y(self, number: float) -> float:
        """Where a number is."""
        part = (number - self._low) / (self._high - self._low)
        return round(self.bottom - part * (self.bottom - self.top), 1)


def scores_over_time(cycles: Sequence[CycleView]) -> Chart | None:
    """Return the scores of cycles, newest first, as a chart; None for fewer than two scores."""
    scored = [cycle for cycle in reversed(cycles) if cycle.value is not None]
    if len(scored) < 2:
        return None
    numbers = [cycle.value for cycle in scored if cycle.value is not None]
    chart = Chart(scored[0].at.timestamp(), scored[-1].at.timestamp(), numbers)
    steps: list[str] = []
    command = "M"
    for cycle in reversed(cycles):
        if cycle.value is None:
            # A gap: the next score begins anew.
            command = "M"
            continue
        x, y = chart.x(cycle.at.timestamp()), chart.y(cycle.value)
        chart.dots.append(Dot(cycle, x, y))
        steps.append(f"{command}{x},{y}")
        command = "L"
    chart.curves.append(Curve("score", " ".join(steps)))
    return chart


def _value_steps(low: float, high: float) -> list[float]:
    """Round numbers at equal distances, the first at or below all values and the last at or above them."""
    if low == high:
        margin = max(1.0, abs(low) / 100)
        low, high = low - margin, high + margin
    rough = (high - low) / (_MOST_MARKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [number * step for number in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _time_steps(first: float, last: float) -> list[tuple[float, str]]:
    """Round times in UTC between both, with their texts; both themselves if there are no two round ones."""
    span = last - first
    step = next(
        (seconds for seconds in _TIME_STEPS if span / seconds <= _MOST_MARKS),
        math.ceil(span / _MOST_MARKS / 86_400) * 86_400,
    )
    moments = [float(moment) for moment in range(math.ceil(first / step) * step, math.floor(last) + 1, step)]
    if len(moments) < 2:
        moments = [first, last]
    form = "%m-%d %H:%M" if span >= 86_400 else "%H:%M" if step >= 60 else "%H:%M:%S"
    return [(moment, datetime.fromtimestamp(moment, UTC).strftime(form)) for moment in moments]
