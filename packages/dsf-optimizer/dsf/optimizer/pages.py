"""The web page of plans: the plans in force and the proposed plans, as picture, tables and reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsf.optimizer.plans import PlanBlock, PlanColumn, PlanComparison, read_plans
from dsf.optimizer.redisrights import PLANS
from dsf.web.pages import PagePlugin, PageView, Sources

#: Maximum rows of a table.
ROWS: Final = 100
#: Height of a column of the picture, in SVG units.
HEIGHT: Final = 96.0


@dataclass(frozen=True)
class Bar:
    """One workload in a column, from the bottom; `strength` 0.25 to 1 is its score relative to the others."""

    block: PlanBlock
    y: float
    height: float
    strength: float


@dataclass(frozen=True)
class PicturedCluster:
    """One cluster of the picture, with its workloads now and in the proposed plan."""

    cluster: str
    changes: bool
    now: PlanColumn
    proposed: PlanColumn
    now_bars: list[Bar]
    proposed_bars: list[Bar]


def draw_comparison(plan: PlanComparison) -> list[PicturedCluster]:
    """Return the clusters of the picture, changed ones first.

    There are at most 48 clusters, and fewer if they have many workloads, because a page has at most 5,000 elements.
    """
    pictured_clusters, block_count = [], 0
    for cluster in plan.clusters[:48]:
        now, proposed = _summarize_column(cluster.now), _summarize_column(cluster.proposed)
        block_count += len(now.blocks) + len(proposed.blocks)
        if block_count > 400:
            break
        pictured_clusters.append(cluster.model_copy(update={"now": now, "proposed": proposed}))
    scores = [
        block.score
        for cluster in pictured_clusters
        for column in (cluster.now, cluster.proposed)
        for block in column.blocks
    ]
    low, high = (min(scores), max(scores)) if scores else (0.0, 0.0)
    return [
        PicturedCluster(
            cluster.cluster,
            cluster.changes,
            cluster.now,
            cluster.proposed,
            _make_bars(cluster.now, low, high),
            _make_bars(cluster.proposed, low, high),
        )
        for cluster in pictured_clusters
    ]


def _summarize_column(column: PlanColumn) -> PlanColumn:
    """Return a column with a limited number of blocks; the last one stands for the remaining workloads."""
    largest_blocks, other_blocks = column.blocks[:12], column.blocks[12:]
    if other_blocks:
        mean = sum(block.score for block in other_blocks) / len(other_blocks)
        share = sum(block.share for block in other_blocks)
        largest_blocks.append(
            PlanBlock(workload=f"{len(other_blocks)} others, on average", replicas=1, score=mean, share=share)
        )
    return column.model_copy(update={"blocks": largest_blocks})


def _make_bars(column: PlanColumn, low: float, high: float) -> list[Bar]:
    heights = [max(5.0, block.share * HEIGHT) for block in column.blocks]
    scale = min(1.0, HEIGHT / sum(heights)) if heights else 1.0
    bars, y = [], HEIGHT
    for block, height in zip(column.blocks, heights, strict=True):
        y -= height * scale
        strength = 0.25 + 0.75 * (block.score - low) / (high - low) if high > low else 0.7
        bars.append(Bar(block, round(y, 1), round(height * scale, 1), round(strength, 2)))
    return bars


def list_plans(sources: Sources, names: Mapping[str, str], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the data of the template: all plans by name, and the requested one, by default the newest."""
    comparisons = read_plans(sources.reading.redis)
    namespace = query.get("namespace", "")
    selected_plan = next((comparison for comparison in comparisons if comparison.namespace == namespace), None)
    if selected_plan is None and comparisons and not namespace:
        selected_plan = max(comparisons, key=lambda comparison: comparison.at)
    pictured = draw_comparison(selected_plan) if selected_plan else []
    return {
        "title": f"Plan of {selected_plan.namespace}" if selected_plan else "Plans",
        "plans": comparisons,
        "wanted": namespace,
        "plan": selected_plan,
        "picture": pictured,
        "height": HEIGHT,
        "max_places": 3,
        "moves": selected_plan.moves[:ROWS] if selected_plan else [],
        "more_moves": selected_plan.more_moves + max(0, len(selected_plan.moves) - ROWS) if selected_plan else 0,
        "more_clusters": selected_plan.more_clusters + len(selected_plan.clusters) - len(pictured)
        if selected_plan
        else 0,
    }


def _is_offered(sources: Sources) -> bool:
    """Return True if there are plans, or Placements and workloads of which the optimiser makes some."""
    return sources.session is not None or bool(sources.reading.redis.exists(PLANS))


PAGES: Final = PagePlugin(
    "Plans",
    "/plans",
    "dsf.optimizer",
    (PageView("/plans", "plans/plan.html", list_plans, query_parameters=("namespace",)),),
    is_offered=_is_offered,
)
