"""Draws a plan: one column per cluster, with the cluster's name, its configuration and its workloads as blocks.

The height of a block is the share of the resource of which the workload uses the largest share, and at least 7 percent.
If the shares of a cluster add up to more than 1, all its blocks are scaled down to fit. The colour of a block is its
score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dsf import pictures
from dsf.optimizer.plan import Plan
from dsf.optimizer.views import AssignmentView, ConfigurationView
from dsf.text import list_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Maximum number of drawn clusters. Clusters without workloads are left out first. The drawn ones are sorted by name.
MAX_CLUSTERS: Final = 48
#: Maximum number of clusters in a row of the picture.
_CLUSTERS_PER_ROW: Final = 8

_TEXT_COLOUR: Final = "#1f2933"
_SOFT_TEXT_COLOUR: Final = "#66727f"
_EDGE_COLOUR: Final = "#c3ccd5"
#: Background of the area of the blocks, which shows the unused share.
_UNUSED_COLOUR: Final = "#f4f6f8"
#: Background of the configuration.
_CONFIGURATION_COLOUR: Final = "#e3e9ef"

# Lengths are in units of the axes. The top of the first row is at 0, and lower positions are negative.
_COLUMN_WIDTH: Final = 1.0
_COLUMN_GAP: Final = 0.14
_NAME_HEIGHT: Final = 0.3
_CONFIGURATION_HEIGHT: Final = 0.48
_BLOCKS_HEIGHT: Final = 1.7
_ROW_GAP: Final = 0.3
_ROW_HEIGHT: Final = _NAME_HEIGHT + _CONFIGURATION_HEIGHT + _BLOCKS_HEIGHT + _ROW_GAP
#: Height of the title above the first row.
_TITLE_HEIGHT: Final = 0.62
#: Gap between the last row and the notes below it.
_NOTES_GAP: Final = 0.12
_NOTE_HEIGHT: Final = 0.2
#: Gaps between a block and its neighbours: at each side, and at its top and bottom.
_BLOCK_SIDE_GAP: Final = 0.03
_BLOCK_TOP_GAP: Final = 0.015
_INCHES_PER_UNIT_OF_WIDTH: Final = 1.6
_INCHES_PER_UNIT_OF_HEIGHT: Final = 1.35

#: Minimum share of a block. A lower block would be invisible.
_MIN_SHARE: Final = 0.07
#: Minimum heights of a block with two lines of text and with one line. Lower blocks have no text.
_MIN_TWO_LINES_HEIGHT: Final = 0.28
_MIN_ONE_LINE_HEIGHT: Final = 0.1
#: Number of characters with a font size of 1 point that fit into a column.
_CHARACTERS_PER_COLUMN: Final = 190


class _Block(NamedTuple):
    assignment: AssignmentView
    #: Share of the resource of which the workload uses the largest share.
    share: float
    #: Colour as red, green, blue and alpha.
    colour: Any


def draw_plan(plan: Plan, path: str | Path) -> None:
    """Write the picture of a plan to a .png or .svg file.

    Raises ToolError if matplotlib is not installed, for another file extension, or if the file cannot be written.
    """
    target = Path(path)
    pictures.check(target)
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cluster_names = _list_clusters(plan)
    row_count = max(1, math.ceil(len(cluster_names) / _CLUSTERS_PER_ROW))
    # Make room for at least three columns, because the title and the notes need their width.
    column_count = max(3, min(_CLUSTERS_PER_ROW, len(cluster_names)))
    notes = _list_notes(plan, len(cluster_names))
    notes_top = -(row_count * _ROW_HEIGHT - _ROW_GAP) - _NOTES_GAP
    picture_bottom = notes_top - _NOTE_HEIGHT * len(notes)
    # Do not use pyplot, because it keeps every figure in a global list and needs a display.
    figure = Figure(
        figsize=(
            column_count * (_COLUMN_WIDTH + _COLUMN_GAP) * _INCHES_PER_UNIT_OF_WIDTH,
            (_TITLE_HEIGHT - picture_bottom) * _INCHES_PER_UNIT_OF_HEIGHT,
        ),
        facecolor="white",
    )
    # The canvas attaches itself to the figure. Agg draws into memory, without a display.
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.03, 0.02, 0.94, 0.96))
    axes.set_axis_off()
    axes.set_xlim(-0.02, column_count * (_COLUMN_WIDTH + _COLUMN_GAP) - _COLUMN_GAP + 0.02)
    axes.set_ylim(picture_bottom, _TITLE_HEIGHT)
    _draw_title(axes, plan)
    scores = [assignment.score for assignment in plan.assignments]
    lowest_score, highest_score = (min(scores), max(scores)) if scores else (0.0, 0.0)
    palette = matplotlib.colormaps["YlGnBu"]
    for index, name in enumerate(cluster_names):
        column_left = index % _CLUSTERS_PER_ROW * (_COLUMN_WIDTH + _COLUMN_GAP)
        column_top = -(index // _CLUSTERS_PER_ROW) * _ROW_HEIGHT
        cluster_configuration = next(
            (configuration for configuration in plan.configurations if configuration.cluster == name), None
        )
        _draw_column(axes, column_left, column_top, name, cluster_configuration)
        if cluster_configuration:
            blocks = [
                _Block(
                    assignment,
                    _compute_share(assignment, cluster_configuration, plan.requests[assignment.workload]),
                    palette(_compute_palette_position(assignment.score, lowest_score, highest_score)),
                )
                for assignment in plan.assignments
                if assignment.cluster == name
            ]
            _draw_blocks(axes, column_left, column_top - _NAME_HEIGHT - _CONFIGURATION_HEIGHT, blocks)
    for index, note in enumerate(notes):
        # The last note is the legend, which is less important than notes about this plan.
        colour = _TEXT_COLOUR if index < len(notes) - 1 else _SOFT_TEXT_COLOUR
        axes.text(0, notes_top - _NOTE_HEIGHT * index, note, fontsize=8, color=colour, va="top")
    pictures.save(figure, target)


def _list_clusters(plan: Plan) -> list[str]:
    """Return the clusters to draw, sorted by name. Prefers clusters with workloads if there are too many."""
    used_clusters = {configuration.cluster for configuration in plan.configurations}
    names = [
        *(cluster for cluster in plan.clusters if cluster in used_clusters),
        *(cluster for cluster in plan.clusters if cluster not in used_clusters),
    ]
    return sorted(names[:MAX_CLUSTERS])


def _compute_palette_position(score: float, lowest_score: float, highest_score: float) -> float:
    """Return the position of a score in the palette: 0.5 for the highest score of the plan, at least 0.15 for others.

    Scores that hardly differ get similar positions.
    """
    span = max(highest_score - lowest_score, 0.5 * abs(highest_score), 1.0)
    return 0.5 - 0.35 * (highest_score - score) / span


def _draw_title(axes: Axes, plan: Plan) -> None:
    gap = f", at most {plan.gap:.2%} below the best" if plan.gap else ""
    axes.text(0, 0.42, f"Sum of scores {plan.score_sum:g}", fontsize=14, weight="bold", color=_TEXT_COLOUR, va="center")
    replicas = sum(assignment.replicas for assignment in plan.assignments)
    unplaced = sum(entry.replicas for entry in plan.unplaced)
    in_use = f"{len(plan.configurations)} of {len(plan.clusters)} clusters in use"
    counts = f"{plan.status}{gap} · {replicas} placed, {unplaced} unplaced · {in_use}"
    axes.text(0, 0.18, counts, fontsize=9, color=_SOFT_TEXT_COLOUR, va="center")


def _draw_column(axes: Axes, left: float, top: float, name: str, configuration: ConfigurationView | None) -> None:
    """Draw a cluster's name, its configuration and the background of its blocks."""
    name_bottom = top - _NAME_HEIGHT
    configuration_bottom = name_bottom - _CONFIGURATION_HEIGHT
    _draw_box(axes, left, name_bottom, _NAME_HEIGHT, _TEXT_COLOUR)
    _write_centred_text(axes, left, top - _NAME_HEIGHT / 2, name, 9.5, color="white", weight="bold")
    _draw_box(axes, left, configuration_bottom, _CONFIGURATION_HEIGHT, _CONFIGURATION_COLOUR)
    _draw_box(axes, left, configuration_bottom - _BLOCKS_HEIGHT, _BLOCKS_HEIGHT, _UNUSED_COLOUR)
    if configuration is None:
        configuration_centre = name_bottom - _CONFIGURATION_HEIGHT / 2
        _write_centred_text(
            axes, left, configuration_centre, "no configuration", 8, color=_SOFT_TEXT_COLOUR, style="italic"
        )
        return
    amounts = ", ".join(
        f"{kind} {configuration.used.get(kind, 0)} of {supply}" for kind, supply in configuration.supply.items()
    )
    _write_centred_text(axes, left, name_bottom - 0.1, configuration.device, 9, color=_TEXT_COLOUR, weight="bold")
    _write_centred_text(axes, left, name_bottom - 0.24, configuration.policy, 6.5, color=_SOFT_TEXT_COLOUR)
    _write_centred_text(axes, left, name_bottom - 0.37, amounts, 6.5, color=_SOFT_TEXT_COLOUR)


def _draw_blocks(axes: Axes, left: float, top: float, blocks: list[_Block]) -> None:
    """Draw a cluster's blocks from the top down, scaled down if their shares add up to more than 1."""
    height_per_share = _BLOCKS_HEIGHT / max(1.0, sum(block.share for block in blocks))
    block_bottom = top
    for block in blocks:
        assignment = block.assignment
        block_height = block.share * height_per_share
        block_bottom -= block_height
        block_centre = block_bottom + block_height / 2
        _draw_box(
            axes,
            left + _BLOCK_SIDE_GAP,
            block_bottom + _BLOCK_TOP_GAP,
            block_height - 2 * _BLOCK_TOP_GAP,
            block.colour,
            width=_COLUMN_WIDTH - 2 * _BLOCK_SIDE_GAP,
        )
        times = f" x{assignment.replicas}" if assignment.replicas > 1 else ""
        stays = " (stays)" if assignment.kept else ""
        if block_height > _MIN_TWO_LINES_HEIGHT:
            workload_text, score_text = f"{assignment.workload}{times}", f"score {assignment.score:g}{stays}"
            _write_centred_text(axes, left, block_centre + 0.07, workload_text, 8.5, color=_TEXT_COLOUR, weight="bold")
            _write_centred_text(axes, left, block_centre - 0.07, score_text, 7.5, color=_TEXT_COLOUR)
        elif block_height > _MIN_ONE_LINE_HEIGHT:
            text = f"{assignment.workload}{times} · {assignment.score:g}{stays}"
            _write_centred_text(axes, left, block_centre, text, 7, color=_TEXT_COLOUR)


def _compute_share(assignment: AssignmentView, configuration: ConfigurationView, request: Mapping[str, int]) -> float:
    """Return the largest share that a workload uses of any resource of its cluster, at least _MIN_SHARE."""
    amounts = ((amount, configuration.supply.get(kind, 0)) for kind, amount in request.items())
    return max([_MIN_SHARE, *(amount * assignment.replicas / supply for amount, supply in amounts if supply)])


def _list_notes(plan: Plan, drawn_count: int) -> list[str]:
    """Return the lines below the clusters. The last one is the legend."""
    notes = []
    if plan.unplaced:
        unplaced_texts = [f"{entry.workload} ({entry.reason.replace('_', ' ')})" for entry in plan.unplaced]
        notes.append(f"Unplaced: {list_names(unplaced_texts, 6)}")
    if drawn_count < len(plan.clusters):
        notes.append(f"{len(plan.clusters) - drawn_count} more clusters are not drawn.")
    notes.append("Height: share of the resource taken. Colour: the fuller, the higher the score.")
    return notes


def _draw_box(axes: Axes, left: float, bottom: float, height: float, colour: Any, width: float = _COLUMN_WIDTH) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((left, bottom), width, height, facecolor=colour, edgecolor=_EDGE_COLOUR, linewidth=0.8))


def _write_centred_text(axes: Axes, left: float, centre: float, text: str, size: float, **style: Any) -> None:
    """Write a line in the middle of a column, truncated if it is too long. `size` is the font size in points."""
    max_characters = int(_CHARACTERS_PER_COLUMN / size)
    fitted_text = text if len(text) <= max_characters else text[: max_characters - 1] + "…"
    axes.text(left + _COLUMN_WIDTH / 2, centre, fitted_text, fontsize=size, ha="center", va="center", **style)
