"""Draws the lines of a backtest as blocks in a terminal, and as a .svg or .png file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from dsf import pictures
from dsf.backtest.summary import BacktestView

_BLOCKS: Final = "▁▂▃▄▅▆▇█"


def draw_blocks(line: Sequence[int | None], width: int = 40) -> str:
    """Return the line as blocks, scaled from its lowest to its highest value; blank where it has no value."""
    columns = min(width, len(line))
    means = list(_compute_means(line, columns)) if columns else []
    present_means = [mean for mean in means if mean is not None]
    low, high = min(present_means, default=0.0), max(present_means, default=0.0)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if mean is None else _BLOCKS[round((mean - low) * scale)] for mean in means)


def _compute_means(line: Sequence[int | None], columns: int) -> Iterator[float | None]:
    for column in range(columns):
        part = line[column * len(line) // columns : (column + 1) * len(line) // columns]
        present_values = [value for value in part if value is not None]
        yield sum(present_values) / len(present_values) if present_values else None


def draw(views: Sequence[BacktestView], path: Path) -> None:
    """Write one panel per cluster. Raises ToolError."""
    pictures.check(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Do not use pyplot, because it keeps every figure in a global list and needs a display.
    figure = Figure(figsize=(9, 3 * len(views)), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    for number, view in enumerate(views, 1):
        axes = figure.add_subplot(len(views), 1, number)
        axes.set_title(f"{view.scorer} on {view.cluster}", loc="left", fontsize=10)
        # Items that change often come first.
        for item in view.items[:8]:
            times, values = _list_points(view, item.line)
            # matplotlib accepts datetimes, although its types do not say so.
            axes.step(times, values, where="post", linewidth=1, label=item.name)  # type: ignore[arg-type]
        axes.grid(visible=True, linewidth=0.3)
        if view.items:
            axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    pictures.save(figure, path)


def _list_points(view: BacktestView, line: Sequence[int | None]) -> tuple[list[datetime], list[float]]:
    """Return times and values. A moment without a value is NaN, which matplotlib does not draw."""
    width = (view.end - view.start) / max(1, len(line) - 1)
    times = [view.start + number * width for number in range(len(line))]
    return times, [float("nan") if value is None else float(value) for value in line]
