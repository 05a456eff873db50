"""The web pages of Placements: their clusters, the reasons, and the effect of other scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from dsf.kube.resources import PLACEMENTS
from dsf.placements.explanation import PlacementView, WhatIf
from dsf.placements.scheduling import MAX_SCORE
from dsf.placements.settings import PlacementSettings
from dsf.web.access import Right
from dsf.web.pages import PagePlugin, PageView, Sources

if TYPE_CHECKING:
    # Do not import this module at run time, because its Kubernetes client takes 40 MB that a page without an API server
    # saves.
    from dsf.placements.reader import PlacementReader

#: Maximum rows of a table.
ROWS: Final = 100
_LIST_PLACEMENTS: Final = Right("list", PLACEMENTS)


def _make_reader(sources: Sources) -> PlacementReader | None:
    """Return a reader of Placements; None without an API server."""
    if sources.session is None:
        return None
    from dsf.placements.reader import PlacementReader, make_scheduler_client

    return PlacementReader(sources.session, make_scheduler_client(PlacementSettings.load()))


def list_placements(sources: Sources, *_: Mapping[str, str]) -> dict[str, Any]:
    """Return the template data of the list of Placements, which is None without an API server."""
    reader = _make_reader(sources)
    rows = reader.list_placements().placements if reader is not None else None
    hidden_rows = max(0, len(rows) - 200) if rows is not None else 0
    return {"title": "Placements", "placements": rows[:200] if rows is not None else None, "more": hidden_rows}


def explain_placement(sources: Sources, names: Mapping[str, str], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the template data of one Placement's page.

    The parameters `cluster`, `score` (`resource/item`) and `value` of the query are a hypothetical score. Raises
    UnknownNameError and BackendError.
    """
    title = f"Placement {names['name']}"
    reader = _make_reader(sources)
    if reader is None:
        return {"title": title, "placement": None}
    hypothetical_scores = _parse_scores(query)
    view = reader.explain(names["namespace"], names["name"], hypothetical_scores)
    ranked_after = {ranked.cluster: ranked for ranked in view.what_if.ranking} if view.what_if else {}
    return {
        "title": title,
        "placement": view,
        "ranking": view.ranking[:ROWS],
        "more": max(0, len(view.ranking) - ROWS),
        "left_out": view.left_out[:ROWS],
        "after": ranked_after,
        "scores": [
            f"{prioritizer.resource}/{prioritizer.score}" for prioritizer in view.prioritizers if prioritizer.resource
        ],
        "asked": hypothetical_scores[0] if hypothetical_scores else None,
        "given": _make_form_values(view, hypothetical_scores),
    }


def _parse_scores(query: Mapping[str, str]) -> list[WhatIf]:
    """Return the hypothetical score in the query; empty if there is none, or an invalid one."""
    resource, _, score = query.get("score", "").partition("/")
    cluster, value = query.get("cluster", ""), query.get("value", "")
    is_number = value.removeprefix("-").isdigit() and value.isascii() and len(value) < 5
    if not (resource and score and cluster and is_number):
        return []
    return [WhatIf(cluster=cluster, resource=resource, score=score, value=max(-MAX_SCORE, min(MAX_SCORE, int(value))))]


def _make_form_values(view: PlacementView, hypothetical_scores: list[WhatIf]) -> dict[str, Any]:
    """Return the initial values of the form: the hypothetical score, or the cluster with the smallest margin."""
    if hypothetical_scores:
        what_if = hypothetical_scores[0]
        return {"cluster": what_if.cluster, "score": f"{what_if.resource}/{what_if.score}", "value": what_if.value}
    clusters_with_margin = [ranked for ranked in view.ranking if ranked.margin is not None]
    nearest_cluster = min(
        clusters_with_margin or view.ranking, key=lambda ranked: abs(ranked.margin or 0), default=None
    )
    column = next((index for index, prioritizer in enumerate(view.prioritizers) if prioritizer.resource), None)
    if nearest_cluster is None or column is None:
        return {"cluster": "", "score": "", "value": 0}
    prioritizer = view.prioritizers[column]
    return {
        "cluster": nearest_cluster.cluster,
        "score": f"{prioritizer.resource}/{prioritizer.score}",
        "value": nearest_cluster.cells[column].value,
    }


#: Browsers do not poll these pages, because the pages read from the API server.
PAGES: Final = PagePlugin(
    "Placements",
    "/placements",
    "dsf.placements",
    (
        PageView(
            "/placements", "placements/placements.html", list_placements, is_live=False, required_right=_LIST_PLACEMENTS
        ),
        PageView(
            "/placements/{namespace}/{name}",
            "placements/placement.html",
            explain_placement,
            is_live=False,
            required_right=_LIST_PLACEMENTS,
            query_parameters=("cluster", "score", "value"),
        ),
    ),
    is_offered=lambda sources: sources.session is not None,
)
