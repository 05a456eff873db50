"""Statuses written by several cells: one part per cell, and the totals. Pure functions.

Each cell writes its own part, `status.cells` by name; the first cell of the rule writes all other fields, computed from
its own part and the others' stored ones. So each field has one writer, and cells communicate only through the API
server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from dsf.api.meta import Condition, set_condition
from dsf.api.scorer import MAX_FAILURES, CellStatus, ClusterCounts, DynamicScorerStatus
from dsf.api.scoringconfig import ConfigCellStatus, DynamicScoringConfigStatus
from dsf.api.types import ConditionType
from dsf.cells import Cells
from dsf.hub.conditions import MESSAGE_LIMIT

Status = TypeVar("Status", DynamicScorerStatus, DynamicScoringConfigStatus)
Part = CellStatus | ConfigCellStatus

_PARTS: Final[dict[type, type[Part]]] = {
    DynamicScorerStatus: CellStatus,
    DynamicScoringConfigStatus: ConfigCellStatus,
}
#: Ignored from a cell without clusters for the scorer if another cell has some.
_ABOUT_CLUSTERS: Final = (ConditionType.Distributed, ConditionType.Scoring)
_WORST_FIRST: Final = ("False", "Unknown", "True")


def own(status: Status, cells: Cells) -> Status:
    """A stored status with this cell's part in place of the totals.

    A cell without a part takes the first cell's view of the scoring API, or its scorers would run nowhere before its
    first check. A status written by a hub without cells belongs to the first cell.
    """
    if not cells.own:
        return status
    kind = _PARTS[type(status)]
    found = next((one for one in status.cells or () if one.name == cells.own), None)
    known: dict[str, Any] = {"cells": None}
    if found is not None or status.cells or not cells.is_first:
        known |= _fields(kind, found or kind(name=cells.own))
    if found is None and isinstance(status, DynamicScorerStatus):
        known["health_status"] = status.health_status
    return status.model_copy(update=known)


def part_of(status: Status, name: str) -> Part:
    """The part of the cell of this name."""
    kind = _PARTS[type(status)]
    return kind(name=name, **_fields(kind, status))


def others(status: dict[str, Any], cells: Cells) -> list[dict[str, Any]]:
    """The parts of the other cells in the stored status of an object."""
    listed = status.get("cells")
    return [one for one in listed if cells.is_other(one.get("name", ""))] if isinstance(listed, list) else []


def summed(status: Status, known: Status, cells: Cells) -> Status:
    """The full status written by the first cell; `status` is its own, `known` the stored one."""
    mine = part_of(status, cells.own)
    listed: Iterable[Part] = known.cells or ()
    rest: list[Part] = [one for one in listed if cells.is_other(one.name)]
    parts: list[Part] = [mine, *sorted(rest, key=lambda one: cells.names.index(one.name))]
    update: dict[str, Any] = {"cells": [mine], "conditions": _conditions(parts, known.conditions)}
    if isinstance(status, DynamicScorerStatus):
        found = [one for one in parts if isinstance(one, CellStatus)]
        counts = {name: sum(getattr(one.clusters, name) for one in found) for name in ClusterCounts.model_fields}
        failures = sorted(
            (failure for one in found for failure in one.failures), key=lambda one: one.time, reverse=True
        )
        update |= {
            "clusters": ClusterCounts(**counts),
            "clusters_with_other_interval": sum(one.clusters_with_other_interval for one in found),
            "failures": failures[:MAX_FAILURES],
        }
    else:
        told = [one for one in parts if isinstance(one, ConfigCellStatus)]
        update |= {
            "clusters": sum(one.clusters for one in told),
            "masked": sum(one.masked for one in told),
            # Most run in every cell: a sum would count them twice.
            "scorers": max(one.scorers for one in told),
        }
    return status.model_copy(update=update)


def _fields(kind: type[Part], found: object) -> dict[str, Any]:
    return {name: getattr(found, name) for name in kind.model_fields if name != "name"}


def _conditions(parts: Sequence[Part], known: Iterable[Condition]) -> list[Condition]:
    types = dict.fromkeys(condition.type for one in parts for condition in one.conditions)
    result = [condition for condition in known if condition.type in types]
    for kind in types:
        concerned = [one for one in parts if _has_clusters(one)] if kind in _ABOUT_CLUSTERS else []
        said = [
            (one.name, condition)
            for one in concerned or parts
            for condition in one.conditions
            if condition.type == kind
        ]
        if said:
            result = set_condition(result, _together(said))
    return result


def _together(said: Sequence[tuple[str, Condition]]) -> Condition:
    """One condition from all cells: the worst, and the cells that report it if they differ."""
    worst = min((condition for _, condition in said), key=lambda one: _WORST_FIRST.index(one.status))
    same = [(name, one) for name, one in said if one.status == worst.status]
    if len(same) == len(said) and len({one.message for _, one in same}) == 1:
        return worst
    text = "; ".join(f"cell {name}: {one.message}" for name, one in same)
    return worst.model_copy(update={"message": text[:MESSAGE_LIMIT]})


def _has_clusters(part: Part) -> bool:
    return bool(part.clusters.desired if isinstance(part, CellStatus) else part.clusters)
