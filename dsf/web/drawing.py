"""Pictures of the pages as numbers for SVG elements. The templates draw them: no style attribute is allowed here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dsf.fleet.overviews import Spread, StateCounts
from dsf.fleet.views import CycleView
from dsf.web.states import STATES, State

STAGES: Final = ("fetch", "score", "publish")


@dataclass(frozen=True)
class Segment:
    """One state's part of a bar, in units of a hundred."""

    state: State
    count: int
    x: float
    width: float


def bar(counts: StateCounts) -> list[Segment]:
    """A bar of 100 units by state, in the order of STATES; each present state is at least one unit wide."""
    numbers = [(state, int(getattr(counts, name))) for name, state in STATES.items()]
    shown = [(state, number) for state, number in numbers if number > 0]
    total = sum(number for _, number in shown)
    widths = [max(1.0, 100 * number / total) for _, number in shown]
    scale = 100 / sum(widths) if widths else 1.0
    found, x = [], 0.0
    for (state, number), width in zip(shown, widths, strict=True):
        found.append(Segment(state, number, round(x, 2), round(width * scale, 2)))
        x += width * scale
    return found


@dataclass(frozen=True)
class Part:
    """One stage of a cycle."""

    stage: str
    seconds: float
    y: float
    height: float


@dataclass(frozen=True)
class Column:
    """One cycle, from the left. Units of the picture."""

    cycle: CycleView
    x: float
    width: float
    parts: list[Part]


@dataclass(frozen=True)
class Timeline:
    """Cycles as columns of fetch, score and publish; `longest` in seconds is the full height."""

    columns: list[Column]
    longest: float
    width: float
    height: float


#: Height of a cycle without a duration.
_STUB: Final = 8.0


def timeline(cycles: Sequence[CycleView], width: float = 1000.0, height: float = 120.0) -> Timeline:
    """Turns cycles, newest first, into columns, oldest on the left; few ones stand at the right end."""
    longest = max((sum(cycle.timings.values()) for cycle in cycles), default=0.0) or 1.0
    places = max(len(cycles), 20)
    step = width / places
    columns = []
    for number, cycle in enumerate(reversed(cycles), places - len(cycles)):
        y, parts = height, []
        for stage in STAGES:
            seconds = cycle.timings.get(stage, 0.0)
            if seconds > 0:
                tall = max(1.0, (height - 16) * seconds / longest)
                y -= tall
                parts.append(Part(stage, seconds, round(y, 1), round(tall, 1)))
        if not parts:
            parts.append(Part("none", 0.0, height - _STUB, _STUB))
        columns.append(Column(cycle, round(number * step, 1), round(step * 0.75, 1), parts))
    return Timeline(columns, longest, width, height)


@dataclass(frozen=True)
class Bin:
    """One column of a histogram: values up to `up_to`, the last one without a bound is the maximum."""

    up_to: float
    count: int
    x: float
    y: float
    width: float
    height: float


def histogram(spread: Spread, width: float = 400.0, height: float = 90.0) -> list[Bin]:
    """The columns of a histogram of the read model; none without values."""
    bars = spread.histogram
    most = max((bar.count for bar in bars), default=0)
    if not most:
        return []
    wide = width / max(len(bars), 4)
    return [
        Bin(
            up_to=bar.up_to if bar.up_to is not None else spread.maximum or 0.0,
            count=bar.count,
            x=round(place * wide, 1),
            y=round(height - height * bar.count / most, 1),
            width=round(wide * 0.9, 1),
            height=round(height * bar.count / most, 1),
        )
        for place, bar in enumerate(bars)
    ]


def sparkline(values: Sequence[float], width: float = 160.0, height: float = 32.0) -> str:
    """The points of a polyline, oldest on the left; empty for fewer than two values."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    step = width / (len(values) - 1)
    return " ".join(
        f"{place * step:.1f},{height - 2 - (height - 4) * (value - low) / span:.1f}"
        for place, value in enumerate(values)
    )
