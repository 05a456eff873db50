"""Pages of Placements: clusters, reasons, and the effect of other scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from dsf.fleet.placement import PlacementView, WhatIf

if TYPE_CHECKING:
    # The Kubernetes client takes 40 MB, which a page that only reads Redis saves.
    from dsf.fleet.placementreader import PlacementReader

#: Most clusters of a ranking, and Placements, on a page.
_ROWS: Final = 100
_LIST: Final = 200
_LIMIT: Final = 100


def placements(reader: PlacementReader | None) -> dict[str, Any]:
    """Data of the list."""
    found = reader.placements().placements if reader is not None else None
    more = max(0, len(found) - _LIST) if found is not None else 0
    return {"title": "Placements", "placements": found[:_LIST] if found is not None else None, "more": more}


def placement(reader: PlacementReader | None, names: Mapping[str, str], query: Mapping[str, str]) -> dict[str, Any]:
    """Data of one Placement's page; `cluster`, `score` (`resource/item`) and `value` of the query are a what-if."""
    title = f"Placement {names['name']}"
    if reader is None:
        return {"title": title, "placement": None}
    asked = _asked(query)
    found = reader.explain(names["namespace"], names["name"], asked)
    after = {one.cluster: one for one in found.what_if.ranking} if found.what_if else {}
    return {
        "title": title,
        "placement": found,
        "ranking": found.ranking[:_ROWS],
        "more": max(0, len(found.ranking) - _ROWS),
        "left_out": found.left_out[:_ROWS],
        "after": after,
        "scores": [f"{one.resource}/{one.score}" for one in found.prioritizers if one.resource],
        "asked": asked[0] if asked else None,
        "given": _given(found, asked),
    }


def _asked(query: Mapping[str, str]) -> list[WhatIf]:
    resource, _, score = query.get("score", "").rpartition("/")
    cluster, value = query.get("cluster", ""), query.get("value", "")
    is_number = value.removeprefix("-").isdigit() and value.isascii() and len(value) < 5
    if not (resource and score and cluster and is_number):
        return []
    return [WhatIf(cluster=cluster, resource=resource, score=score, value=max(-_LIMIT, min(_LIMIT, int(value))))]


def _given(found: PlacementView, asked: list[WhatIf]) -> dict[str, Any]:
    """Initial values of the form: the current what-if, or the cluster nearest to the line."""
    if asked:
        one = asked[0]
        return {"cluster": one.cluster, "score": f"{one.resource}/{one.score}", "value": one.value}
    near = [one for one in found.ranking if one.margin is not None]
    first = min(near or found.ranking, key=lambda one: abs(one.margin or 0), default=None)
    column = next((at for at, one in enumerate(found.prioritizers) if one.resource), None)
    if first is None or column is None:
        return {"cluster": "", "score": "", "value": 0}
    prioritizer = found.prioritizers[column]
    return {
        "cluster": first.cluster,
        "score": f"{prioritizer.resource}/{prioritizer.score}",
        "value": first.cells[column].value,
    }
