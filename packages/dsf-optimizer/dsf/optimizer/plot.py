"""Draws a plan: clusters as columns, their configurations on top, their workloads as blocks below.

The height of a block is the share of the configuration that the workload uses. Its colour is the score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsf import pictures
from dsf.optimizer.plan import Plan
from dsf.optimizer.views import AssignmentView, ConfigurationView
from dsf.text import list_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Maximum drawn clusters. Clusters with workloads come first.
MAX_CLUSTERS: Final = 48
#: Clusters in a row of the picture.
_PER_ROW: Final = 8

# Colours.
_INK, _MUTED, _EDGE, _EMPTY, _HEADER = "#1f2933", "#66727f", "#c3ccd5", "#f4f6f8", "#e3e9ef"
# Width of a column and of the gap between two; heights of its name, configuration and blocks, and between two rows.
_WIDTH, _GAP, _HEAD, _BAND, _BODY, _BETWEEN = 1.0, 0.14, 0.3, 0.48, 1.7, 0.3
_ROW = _HEAD + _BAND + _BODY + _BETWEEN


def draw_plan(plan: Plan, path: str | Path) -> None:
    """Write the picture of a plan to a .png or .svg file.

    Raises ToolError if matplotlib is not installed, for another file extension, or if the file cannot be written.
    """
    target = Path(path)
    pictures.check(target)
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = _list_clusters(plan)
    rows = max(1, math.ceil(len(names) / _PER_ROW))
    across = max(3, min(_PER_ROW, len(names)))
    height = rows * _ROW - _BETWEEN
    notes = _list_notes(plan, len(names))
    bottom = -height - 0.12 - 0.2 * len(notes)
    # Do not use pyplot, because it keeps every figure in a global list and needs a display.
    figure = Figure(figsize=(across * (_WIDTH + _GAP) * 1.6, (0.62 - bottom) * 1.35), facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.03, 0.02, 0.94, 0.96))
    axes.set_axis_off()
    axes.set_xlim(-0.02, across * (_WIDTH + _GAP) - _GAP + 0.02)
    axes.set_ylim(bottom, 0.62)
    _draw_title(axes, plan)
    scores = [assignment.score for assignment in plan.assignments]
    low, high = (min(scores), max(scores)) if scores else (0.0, 0.0)
    palette = matplotlib.colormaps["YlGnBu"]
    for index, name in enumerate(names):
        x = index % _PER_ROW * (_WIDTH + _GAP)
        y = -(index // _PER_ROW) * _ROW
        cluster_configuration = next(
            (configuration for configuration in plan.configurations if configuration.cluster == name), None
        )
        _draw_cluster(axes, x, y, name, cluster_configuration)
        if cluster_configuration:
            blocks = [assignment for assignment in plan.assignments if assignment.cluster == name]
            shares = [_compute_share(block, cluster_configuration, plan.requests[block.workload]) for block in blocks]
            colours = [palette(_shade(block.score, low, high)) for block in blocks]
            _draw_blocks(axes, x, y - _HEAD - _BAND, list(zip(blocks, shares, colours, strict=True)))
    for index, line in enumerate(notes):
        ink = _INK if index < len(notes) - 1 else _MUTED
        axes.text(0, -height - 0.12 - 0.2 * index, line, fontsize=8, color=ink, va="top")
    pictures.save(figure, target)


def _list_clusters(plan: Plan) -> list[str]:
    used_clusters = {configuration.cluster for configuration in plan.configurations}
    names = [
        *(cluster for cluster in plan.clusters if cluster in used_clusters),
        *(cluster for cluster in plan.clusters if cluster not in used_clusters),
    ]
    return sorted(names[:MAX_CLUSTERS])


def _shade(score: float, low: float, high: float) -> float:
    """Return the position of a score on the scale from pale to full. Scores that hardly differ look alike."""
    span = max(high - low, 0.5 * abs(high), 1.0)
    return 0.5 - 0.35 * (high - score) / span


def _draw_title(axes: Axes, plan: Plan) -> None:
    gap = f", at most {plan.gap:.2%} below the best" if plan.gap else ""
    axes.text(0, 0.42, f"Sum of scores {plan.score_sum:g}", fontsize=14, weight="bold", color=_INK, va="center")
    replicas = sum(assignment.replicas for assignment in plan.assignments)
    unplaced = sum(entry.replicas for entry in plan.unplaced)
    in_use = f"{len(plan.configurations)} of {len(plan.clusters)} clusters in use"
    counts = f"{plan.status}{gap} · {replicas} placed, {unplaced} unplaced · {in_use}"
    axes.text(0, 0.18, counts, fontsize=9, color=_MUTED, va="center")


def _draw_cluster(axes: Axes, x: float, y: float, name: str, configuration: ConfigurationView | None) -> None:
    _draw_box(axes, x, y - _HEAD, _HEAD, _INK)
    _fit(axes, x, y - _HEAD / 2, name, 9.5, color="white", weight="bold")
    _draw_box(axes, x, y - _HEAD - _BAND, _BAND, _HEADER)
    _draw_box(axes, x, y - _HEAD - _BAND - _BODY, _BODY, _EMPTY)
    if configuration is None:
        _fit(axes, x, y - _HEAD - _BAND / 2, "no configuration", 8, color=_MUTED, style="italic")
        return
    amounts = ", ".join(
        f"{kind} {configuration.used.get(kind, 0)} of {supply}" for kind, supply in configuration.supply.items()
    )
    _fit(axes, x, y - _HEAD - 0.1, configuration.device, 9, color=_INK, weight="bold")
    _fit(axes, x, y - _HEAD - 0.24, configuration.policy, 6.5, color=_MUTED)
    _fit(axes, x, y - _HEAD - 0.37, amounts, 6.5, color=_MUTED)


def _draw_blocks(axes: Axes, x: float, y: float, blocks: list[tuple[AssignmentView, float, Any]]) -> None:
    """Draw blocks from the top down. Their height is the share of the resource that they use most."""
    scale = _BODY / max(1.0, sum(share for _, share, _ in blocks))
    for assignment, share, shade in blocks:
        block_height = share * scale
        y -= block_height
        _draw_box(axes, x + 0.03, y + 0.015, block_height - 0.03, shade, width=_WIDTH - 0.06)
        times = f" x{assignment.replicas}" if assignment.replicas > 1 else ""
        stays = " (stays)" if assignment.kept else ""
        if block_height > 0.28:
            _fit(axes, x, y + block_height / 2 + 0.07, f"{assignment.workload}{times}", 8.5, color=_INK, weight="bold")
            _fit(axes, x, y + block_height / 2 - 0.07, f"score {assignment.score:g}{stays}", 7.5, color=_INK)
        elif block_height > 0.1:
            _fit(
                axes,
                x,
                y + block_height / 2,
                f"{assignment.workload}{times} · {assignment.score:g}{stays}",
                7,
                color=_INK,
            )


def _compute_share(assignment: AssignmentView, configuration: ConfigurationView, request: Mapping[str, int]) -> float:
    amounts = ((amount, configuration.supply.get(kind, 0)) for kind, amount in request.items())
    # Return at least 0.07, because a lower block would be invisible.
    return max([0.07, *(amount * assignment.replicas / supply for amount, supply in amounts if supply)])


def _list_notes(plan: Plan, drawn: int) -> list[str]:
    lines = []
    if plan.unplaced:
        unplaced_texts = [f"{entry.workload} ({entry.reason.replace('_', ' ')})" for entry in plan.unplaced]
        lines.append(f"Unplaced: {list_names(unplaced_texts, 6)}")
    if drawn < len(plan.clusters):
        lines.append(f"{len(plan.clusters) - drawn} more clusters are not drawn.")
    lines.append("Height: share of the resource taken. Colour: the fuller, the higher the score.")
    return lines


def _draw_box(axes: Axes, x: float, y: float, height: float, colour: Any, width: float = _WIDTH) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=_EDGE, linewidth=0.8))


def _fit(axes: Axes, x: float, y: float, text: str, size: float, **style: Any) -> None:
    """Write a line in the middle of a column, cut if it is too long."""
    max_characters = int(190 / size)
    fitted_text = text if len(text) <= max_characters else text[: max_characters - 1] + "…"
    axes.text(x + _WIDTH / 2, y, fitted_text, fontsize=size, ha="center", va="center", **style)
