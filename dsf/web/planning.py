"""Page of the optimiser's plans: the current and the proposed plan as picture, tables and reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsf.fleet.plans import PlanBlock, PlanColumn, PlanComparison
from dsf.web.reading import Reading

#: A page may have 5,000 elements. Clusters in the picture, workloads that one column and the whole picture name; rows
#: of the table, and places that one of its cells names.
PICTURED: Final = 48
_NAMED: Final = 12
_ALL_NAMED: Final = 400
ROWS: Final = 100
PLACES: Final = 3
#: Units of a column of the picture.
HEIGHT: Final = 96.0
_SMALLEST: Final = 5.0


@dataclass(frozen=True)
class Bar:
    """One workload in a column, from the bottom; `strength` 0.25 to 1 is its score relative to the others."""

    block: PlanBlock
    y: float
    height: float
    strength: float


@dataclass(frozen=True)
class Pictured:
    """One cluster of the picture."""

    cluster: str
    changes: bool
    now: PlanColumn
    proposed: PlanColumn
    now_bars: list[Bar]
    proposed_bars: list[Bar]


def picture(plan: PlanComparison) -> list[Pictured]:
    """The first clusters, changed ones first; fewer if they have many workloads."""
    shown, named = [], 0
    for cluster in plan.clusters[:PICTURED]:
        now, proposed = _few(cluster.now), _few(cluster.proposed)
        named += len(now.blocks) + len(proposed.blocks)
        if named > _ALL_NAMED:
            break
        shown.append(cluster.model_copy(update={"now": now, "proposed": proposed}))
    scores = [block.score for cluster in shown for column in (cluster.now, cluster.proposed) for block in column.blocks]
    low, high = (min(scores), max(scores)) if scores else (0.0, 0.0)
    return [
        Pictured(
            cluster.cluster,
            cluster.changes,
            cluster.now,
            cluster.proposed,
            _bars(cluster.now, low, high),
            _bars(cluster.proposed, low, high),
        )
        for cluster in shown
    ]


def _few(column: PlanColumn) -> PlanColumn:
    """A column whose last block summarizes the workloads that it does not name."""
    named, others = column.blocks[:_NAMED], column.blocks[_NAMED:]
    if others:
        mean = sum(block.score for block in others) / len(others)
        share = sum(block.share for block in others)
        named.append(PlanBlock(workload=f"{len(others)} others, on average", replicas=1, score=mean, share=share))
    return column.model_copy(update={"blocks": named})


def _bars(column: PlanColumn, low: float, high: float) -> list[Bar]:
    heights = [max(_SMALLEST, block.share * HEIGHT) for block in column.blocks]
    scale = min(1.0, HEIGHT / sum(heights)) if heights else 1.0
    bars, y = [], HEIGHT
    for block, height in zip(column.blocks, heights, strict=True):
        y -= height * scale
        strength = 0.25 + 0.75 * (block.score - low) / (high - low) if high > low else 0.7
        bars.append(Bar(block, round(y, 1), round(height * scale, 1), round(strength, 2)))
    return bars


def plans(reading: Reading, query: Mapping[str, str]) -> dict[str, Any]:
    """Data of the template: all plans by name, and the requested one, else the newest."""
    comparisons = reading.plans()
    wanted = query.get("namespace", "")
    chosen = next((comparison for comparison in comparisons if comparison.namespace == wanted), None)
    if chosen is None and comparisons and not wanted:
        chosen = max(comparisons, key=lambda comparison: comparison.at)
    pictured = picture(chosen) if chosen else []
    return {
        "title": f"Plan of {chosen.namespace}" if chosen else "Plans",
        "plans": comparisons,
        "wanted": wanted,
        "plan": chosen,
        "picture": pictured,
        "height": HEIGHT,
        "max_places": PLACES,
        "moves": chosen.moves[:ROWS] if chosen else [],
        "more_moves": chosen.more_moves + max(0, len(chosen.moves) - ROWS) if chosen else 0,
        "more_clusters": chosen.more_clusters + len(chosen.clusters) - len(pictured) if chosen else 0,
    }
