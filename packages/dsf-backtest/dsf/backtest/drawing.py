"""Computes the coordinates of backtests' lines for SVG elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsf.web.charts import Chart, Curve


@dataclass(frozen=True)
class SeriesLine:
    """A named line of values at equal distances from `start` to `end` (unix seconds); None is a gap."""

    name: str
    start: float
    end: float
    values: Sequence[float | None]


def draw_lines(lines: Sequence[SeriesLine]) -> Chart | None:
    """Return a chart with common axes, or None if no line has a value. Each line keeps its value until the next one."""
    numbers = [value for line in lines for value in line.values if value is not None]
    if not numbers:
        return None
    chart = Chart(min(line.start for line in lines), max(line.end for line in lines), numbers)
    chart.curves += [Curve(line.name, _draw_stairs(chart, line)) for line in lines]
    return chart


def _draw_stairs(chart: Chart, line: SeriesLine) -> str:
    """Return the attribute `d` of an SVG path that draws the line in steps."""
    distance = (line.end - line.start) / max(1, len(line.values) - 1)
    path_parts: list[str] = []
    previous_value: float | None = None
    for number, value in enumerate(line.values):
        x = chart.compute_x(line.start + number * distance)
        is_last = number == len(line.values) - 1
        if previous_value is not None and (value != previous_value or is_last):
            # The previous value ends here, at another value or at a gap.
            path_parts.append(f"L{x},{chart.compute_y(previous_value)}")
        if value is not None and value != previous_value:
            path_parts.append(f"{'M' if previous_value is None else 'L'}{x},{chart.compute_y(value)}")
            # Browsers draw a line of length 0 as a dot.
            path_parts += [f"L{x},{chart.compute_y(value)}"] if is_last and previous_value is None else []
        previous_value = value
    return " ".join(path_parts)
