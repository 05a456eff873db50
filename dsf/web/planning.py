"""Pages about where work runs.

The optimiser's plans: the current and the proposed plan as picture, tables and reasons. Placements: their clusters,
the reasons, and the effect of other scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dsf.fleet.placement import PlacementView, WhatIf
from dsf.fleet.plans import PlanBlock, PlanColumn, PlanComparison
from dsf.fleet.scheduling import MAX_SCORE
from dsf.web.reading import Reading

if TYPE_CHECKING:
    # The Kubernetes client takes 40 MB, which a page that only reads Redis saves.
    from dsf.fleet.placementreader import PlacementReader

#: Most rows of a table.
ROWS: Final = 100
#: Units of a column of the picture.
HEIGHT: Final = 96.0


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
    for cluster in plan.clusters[:48]:
        now, proposed = _few(cluster.now), _few(cluster.proposed)
        named += len(now.blocks) + len(proposed.blocks)
        if named > 400:
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
    # A page may have 5,000 elements.
    named, others = column.blocks[:12], column.blocks[12:]
    if others:
        mean = sum(block.score for block in others) / len(others)
        share = sum(block.share for block in others)
        named.append(PlanBlock(workload=f"{len(others)} others, on average", replicas=1, score=mean, share=share))
    return column.model_copy(update={"blocks": named})


def _bars(column: PlanColumn, low: float, high: float) -> list[Bar]:
    heights = [max(5.0, block.share * HEIGHT) for block in column.blocks]
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
        "max_places": 3,
        "moves": chosen.moves[:ROWS] if chosen else [],
        "more_moves": chosen.more_moves + max(0, len(chosen.moves) - ROWS) if chosen else 0,
        "more_clusters": chosen.more_clusters + len(chosen.clusters) - len(pictured) if chosen else 0,
    }


def placements(reader: PlacementReader | None) -> dict[str, Any]:
    """Data of the list."""
    rows = reader.placements().placements if reader is not None else None
    more = max(0, len(rows) - 200) if rows is not None else 0
    return {"title": "Placements", "placements": rows[:200] if rows is not None else None, "more": more}


def placement(reader: PlacementReader | None, names: Mapping[str, str], query: Mapping[str, str]) -> dict[str, Any]:
    """Data of one Placement's page; `cluster`, `score` (`resource/item`) and `value` of the query are a what-if."""
    title = f"Placement {names['name']}"
    if reader is None:
        return {"title": title, "placement": None}
    asked = _asked(query)
    view = reader.explain(names["namespace"], names["name"], asked)
    after = {ranked.cluster: ranked for ranked in view.what_if.ranking} if view.what_if else {}
    return {
        "title": title,
        "placement": view,
        "ranking": view.ranking[:ROWS],
        "more": max(0, len(view.ranking) - ROWS),
        "left_out": view.left_out[:ROWS],
        "after": after,
        "scores": [
            f"{prioritizer.resource}/{prioritizer.score}" for prioritizer in view.prioritizers if prioritizer.resource
        ],
        "asked": asked[0] if asked else None,
        "given": _given(view, asked),
    }


def _asked(query: Mapping[str, str]) -> list[WhatIf]:
    resource, _, score = query.get("score", "").rpartition("/")
    cluster, value = query.get("cluster", ""), query.get("value", "")
    is_number = value.removeprefix("-").isdigit() and value.isascii() and len(value) < 5
    if not (resource and score and cluster and is_number):
        return []
    return [WhatIf(cluster=cluster, resource=resource, score=score, value=max(-MAX_SCORE, min(MAX_SCORE, int(value))))]


def _given(view: PlacementView, asked: list[WhatIf]) -> dict[str, Any]:
    """Initial values of the form: the current what-if, or the cluster nearest to the line."""
    if asked:
        what_if = asked[0]
        return {"cluster": what_if.cluster, "score": f"{what_if.resource}/{what_if.score}", "value": what_if.value}
    near = [ranked for ranked in view.ranking if ranked.margin is not None]
    first = min(near or view.ranking, key=lambda ranked: abs(ranked.margin or 0), default=None)
    column = next((at for at, prioritizer in enumerate(view.prioritizers) if prioritizer.resource), None)
    if first is None or column is None:
        return {"cluster": "", "score": "", "value": 0}
    prioritizer = view.prioritizers[column]
    return {
        "cluster": first.cluster,
        "score": f"{prioritizer.resource}/{prioritizer.score}",
        "value": first.cells[column].value,
    }
