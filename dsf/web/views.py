"""Lists the pages of this package, and builds the data of their templates.

All viewers of a page get the same data.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dsf import keys
from dsf.api.naming import sanitize_resource_name
from dsf.api.score import compute_validity
from dsf.api.scorer import DynamicScorer
from dsf.errors import CursorError, UnknownScorerError
from dsf.fleet import changes
from dsf.fleet.selection import PairFilter
from dsf.fleet.verdict import Verdict
from dsf.fleet.views import ClusterPage, ConditionView, FleetOverview, SettingView
from dsf.store.agents import Agents
from dsf.store.entries import make_scorer_target
from dsf.web.actions import build_outcome_page
from dsf.web.clustergroups import ClusterSelection, build_group_page, select_clusters
from dsf.web.objects import list_settings, redact_config
from dsf.web.pagedata import PAGE_ROWS, TablePage, TableRow
from dsf.web.pages import PageView, Query, Sources
from dsf.web.search import build_search_page

if TYPE_CHECKING:
    from datetime import datetime


#: Maximum clusters in a matrix.
_MAX_MATRIX_ROWS: Final = 200
#: Maximum cells of a matrix.
_MAX_MATRIX_CELLS: Final = 2000
#: Maximum pairs of a fleet whose first page lists them with their values.
_MAX_LISTED_PAIRS: Final = 60
#: Maximum scorers on the first page.
_MAX_SCORERS: Final = 60
#: Maximum entries of the shorter lists of a page: problem groups, overrides, unready scorers.
_MAX_ENTRIES: Final = 30
#: Maximum cycles on the page of a pair, and those that its table lists unless a link asks for all.
_MAX_CYCLES: Final = 50
_MAX_LISTED_CYCLES: Final = 10

_Page = TypeVar("_Page", ClusterPage, TablePage)


def _build_fleet_page(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    reading = sources.reading
    fleet = reading.fleet_queries.summary()
    groups = reading.list_problem_groups(fleet.scorers)
    alert = _describe_failing(fleet.states.failing) or ("hub problem" if fleet.problems else "")
    # A browser tab shows only the beginning of the title, so the alert replaces "Fleet".
    context: dict[str, Any] = {
        "title": "" if alert else "Fleet",
        "alert": alert,
        "fleet": fleet,
        "groups": groups[:_MAX_ENTRIES],
    }
    context |= {"more_groups": max(0, len(groups) - _MAX_ENTRIES), "max_scorers": _MAX_SCORERS}
    context |= {"page": None, "lines": []}
    scorers = sorted(scorer.name for scorer in fleet.scorers if scorer.pairs)
    # The filter by ClusterSet and label is only offered for small fleets, because reading the labels of a large fleet
    # is slow. A large fleet has a separate page for its groups.
    selection = (
        select_clusters(reading, query)
        if fleet.clusters <= _MAX_MATRIX_ROWS or {"set", "label"} & set(query)
        else ClusterSelection()
    )
    cluster_count = fleet.clusters if selection.clusters is None else len(selection.clusters)
    context["only"] = selection
    if fleet.pairs <= _MAX_LISTED_PAIRS:
        return context | {"mode": "pairs", "page": reading.read_page(PairFilter(clusters=selection.clusters))}
    max_rows = _count_matrix_rows(fleet, min(len(groups), _MAX_ENTRIES), len(scorers), selection)
    if cluster_count <= _MAX_MATRIX_ROWS and cluster_count * len(scorers) <= _MAX_MATRIX_CELLS and max_rows > 0:
        matrix_page = _read_page_or_first(
            lambda cursor: reading.fleet_queries.clusters(
                limit=max_rows, names=selection.clusters, cursor=cursor, has_pairs=True
            ),
            query,
        )
        return context | {"mode": "matrix", "columns": scorers, "lines": matrix_page.clusters, "page": matrix_page}
    problem_states = (Verdict.FAILING, Verdict.EXPIRED, Verdict.SKIPPED, Verdict.NEVER_SUCCEEDED, Verdict.EMPTY)
    pair_filter = PairFilter(clusters=selection.clusters, states=problem_states)
    problem_page = _read_page_or_first(lambda cursor: reading.read_page(pair_filter, cursor), query)
    return context | {"mode": "large", "page": problem_page}


def _describe_failing(count: int) -> str:
    return f"{count} failing" if count else ""


def _read_page_or_first(read_page: Callable[[str | None], _Page], query: Query) -> _Page:
    """Return the page after the query's cursor; the first page if the cursor is invalid.

    A cursor becomes invalid if the fleet's size changes, because matrix and list have different cursors.
    """
    try:
        return read_page(query.get("cursor") or None)
    except CursorError:
        return read_page(None)


def _count_matrix_rows(fleet: FleetOverview, groups: int, columns: int, selection: ClusterSelection) -> int:
    """Return the maximum clusters in the matrix for a page of less than 5,000 elements.

    The matrix does not fit on the page if the result is 0 or less.
    """
    bars: int = sum(15 + sum(number > 0 for _, number in scorer.states) for scorer in fleet.scorers[:_MAX_SCORERS])
    choices = len(selection.sets) + len(selection.labels)
    elements_above = 185 + bars + 13 * groups + 8 * min(len(fleet.unready), _MAX_ENTRIES) + choices
    return min(_MAX_MATRIX_ROWS, (4998 - elements_above - 2 * columns) // (3 + 2 * columns))


def list_effective_settings(sources: Sources, name: str) -> list[SettingView] | None:
    """Return the effective settings of a registered scorer; None if its DynamicScorer is unreadable.

    Raises UnknownScorerError for a scorer that is not registered.
    """
    record = sources.reading.registry.read_scorer(name)
    manifest = sources.read_scorer(name, record.namespace)
    if manifest is None:
        return None
    override = sources.reading.schedule.read_overrides_of(name, []).get(make_scorer_target(name))
    interval = override.interval if override is not None else None
    validity = compute_validity(interval or record.interval, record.validity, record.interval)
    return list_settings(manifest, override, validity)


def _build_scorer_page(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    name = names["scorer"]
    title = f"Scorer {name}"
    try:
        record = sources.reading.registry.read_scorer(name)
    except UnknownScorerError:
        unready_scorer = sources.reading.fleet_queries.unready(name)
        if unready_scorer is None:
            raise
        manifest = sources.read_scorer(name, unready_scorer.namespace)
        return {
            "title": title,
            "template": "unready.html",
            "unready": unready_scorer,
            "object": manifest,
            "settings": list_settings(manifest) if manifest else [],
            "conditions": unready_scorer.conditions,
            "config": _describe_config(manifest),
        }
    manifest = sources.read_scorer(name, record.namespace)
    scorer = sources.reading.fleet_queries.scorer(name)
    all_clusters = make_scorer_target(name)
    scorer_overrides = [
        item for item in sources.reading.schedule.read_overrides().items() if keys.split_pair(item[0])[1] == name
    ]
    # The override of all clusters comes before those of single clusters.
    overrides = sorted(scorer_overrides, key=lambda item: (item[0] != all_clusters, item[0]))
    return {
        "title": title,
        "alert": _describe_failing(scorer.states.failing),
        "record": record,
        "scorer": scorer,
        "validity": compute_validity(scorer.effective_interval_seconds, record.validity, record.interval),
        "object": manifest,
        "settings": list_effective_settings(sources, name) or [],
        "conditions": _list_conditions(manifest) if manifest else scorer.conditions,
        "config": _describe_config(manifest, scorer.config_read),
        "groups": sources.reading.list_problem_groups([scorer])[:_MAX_ENTRIES],
        "overrides": overrides[:_MAX_ENTRIES],
        "more_overrides": max(0, len(overrides) - _MAX_ENTRIES),
        "page": sources.reading.read_page(PairFilter(scorer=name), query.get("cursor")),
    }


def _list_conditions(scorer: DynamicScorer) -> list[ConditionView]:
    return [
        ConditionView(**condition.model_dump(exclude={"last_transition_time"}), since=condition.last_transition_time)
        for condition in scorer.status.conditions
    ]


def _describe_config(scorer: DynamicScorer | None, read_at: datetime | None = None) -> dict[str, Any]:
    """Return the last known /config: text, time of its last change, time of its last read, and ConfigSynced condition.

    The result is empty if no /config is known.
    """
    synced_config = scorer.status.last_synced_config if scorer else None
    if scorer is None or synced_config is None:
        return {}
    condition = next((condition for condition in scorer.status.conditions if condition.type == "ConfigSynced"), None)
    text = json.dumps(redact_config(synced_config), indent=2)
    return {"text": text, "since": scorer.status.last_synced_config_time, "read": read_at, "condition": condition}


def _build_cluster_page(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    name = names["cluster"]
    cluster, agent = sources.reading.fleet_queries.cluster(name), Agents(sources.reading.redis).read_agent(name)
    return {
        "title": f"Cluster {name}",
        "alert": _describe_failing(cluster.states.failing),
        "cluster": cluster,
        "messages": agent.schema_version if agent else None,
        "page": sources.reading.read_page(PairFilter(clusters=[name]), query.get("cursor")),
        "not_here": [
            (
                record,
                cluster.absent.get(scorer) or record.problem or "not distributed yet, or see condition Distributed",
            )
            for scorer, record in sorted(sources.reading.registry.read_scorers().items())
            if scorer not in cluster.scorers
        ],
    }


def _build_pair_page(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    row, detail = sources.reading.read_pair(names["cluster"], names["scorer"])
    cycles = detail.cycles[:_MAX_CYCLES]
    run = query.get("run", "")
    lists_all = query.get("cycles") == "all" or any(cycle.run_id == run for cycle in cycles[_MAX_LISTED_CYCLES:])
    return {
        "title": f"{names['scorer']} on {names['cluster']}",
        "alert": row.state.label if row.state.name == Verdict.FAILING else "",
        "row": row,
        "pair": detail,
        "cycles": cycles,
        "listed_cycles": cycles if lists_all else cycles[:_MAX_LISTED_CYCLES],
        "max_listed": _MAX_LISTED_CYCLES,
        "longest": max((sum(cycle.timings.values()) for cycle in cycles), default=0.0) or 1.0,
        "items": detail.score_items[:PAGE_ROWS],
        "more_items": max(0, len(detail.score_items) - PAGE_ROWS),
        "commands": _list_commands(row, sources.reading.registry.read_scorer(row.scorer).namespace),
        "asked_for": run,
    }


def _list_commands(row: TableRow, namespace: str) -> list[str]:
    """Return commands for further diagnosis of a pair.

    `namespace` is that of the scorer's DynamicScorer; empty if it is unknown.
    """
    cluster, scorer = shlex.quote(row.cluster), shlex.quote(row.scorer)
    resource_name = sanitize_resource_name(row.entry.score_name if row.entry else row.scorer)
    namespace_option = f"-n {shlex.quote(namespace)}" if namespace else "-A"
    return [
        f"dsf explain {scorer} --cluster {cluster}",
        f"dsf history {scorer} --cluster {cluster}",
        f"kubectl describe dynamicscorer {scorer} {namespace_option}",
        f"kubectl get addonplacementscore {shlex.quote(resource_name)} -n {cluster} -o yaml",
        f"kubectl get manifestwork dynamic-scoring-config-manifestwork -n {cluster} -o yaml",
        "# on the managed cluster",
        "kubectl -n dynamic-scoring logs deploy/dynamic-scoring-agent --since=10m",
    ]


def _build_changes_page(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    scorer, cluster = query.get("scorer") or None, query.get("cluster") or None
    cursor = query.get("cursor") or None
    change_list = changes.read_changes(
        sources.reading.redis, limit=PAGE_ROWS, cursor=cursor, scorer=scorer, cluster=cluster
    )
    filters = {name: text for name, text in (("scorer", scorer), ("cluster", cluster)) if text}
    return {"title": "Changes", "changes": change_list, "only": filters}


VIEWS: Final = (
    PageView("/", "fleet.html", _build_fleet_page, query_parameters=("cursor", "set", "label")),
    PageView("/scorers/{scorer}", "scorer.html", _build_scorer_page, has_actions=True),
    PageView("/clusters/{cluster}", "cluster.html", _build_cluster_page),
    PageView(
        "/clusters/{cluster}/scorers/{scorer}",
        "pair.html",
        _build_pair_page,
        has_actions=True,
        query_parameters=("run", "cycles"),
    ),
    PageView("/changes", "changes.html", _build_changes_page, query_parameters=("cursor", "scorer", "cluster")),
    PageView("/find", "find.html", build_search_page, query_parameters=("cursor", "q")),
    PageView("/outcomes/{ident}", "outcome.html", build_outcome_page),
    PageView("/parts", "parts.html", build_group_page, query_parameters=("cursor", "by")),
)
