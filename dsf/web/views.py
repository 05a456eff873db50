"""The pages: template and data of each. A page is the same for all viewers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dsf import keys
from dsf.api.naming import sanitize_resource_name
from dsf.api.score import validity_at
from dsf.api.scorer import DynamicScorer
from dsf.errors import CursorError, UnknownScorerError
from dsf.fleet import changes
from dsf.fleet.selection import PairFilter
from dsf.fleet.verdict import Verdict
from dsf.fleet.views import ClusterPage, ConditionView, FleetOverview, SettingView
from dsf.store.agents import Agents
from dsf.store.entries import scorer_target
from dsf.web.actions import outcome
from dsf.web.clustergroups import ClusterSelection, group_page, select_clusters
from dsf.web.objects import settings_of, shown_config
from dsf.web.pagedata import PAGE_ROWS, Rows, TableRow
from dsf.web.pages import PageView, Query, Sources
from dsf.web.search import find

if TYPE_CHECKING:
    from datetime import datetime


#: Most clusters in a matrix.
_MATRIX_ROWS: Final = 200
#: Most scorers on the first page.
_SCORERS: Final = 60
#: Most failure groups of a page, and overrides of a scorer.
_LISTED: Final = 30

_Page = TypeVar("_Page", ClusterPage, Rows)


def _fleet(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    reading = sources.reading
    fleet = reading.model.summary()
    groups = reading.groups(fleet.scorers)
    context: dict[str, Any] = {"title": "Fleet", "fleet": fleet, "groups": groups[:_LISTED]}
    context |= {"more_groups": max(0, len(groups) - _LISTED), "max_scorers": _SCORERS, "page": None, "lines": []}
    scorers = sorted(scorer.name for scorer in fleet.scorers if scorer.pairs)
    # A large fleet has a separate page for that, and reading its labels takes a while.
    only = (
        select_clusters(reading, query)
        if fleet.clusters <= _MATRIX_ROWS or {"set", "label"} & set(query)
        else ClusterSelection()
    )
    clusters = fleet.clusters if only.clusters is None else len(only.clusters)
    context["only"] = only
    # A small fleet is listed with its values.
    if fleet.pairs <= 60:
        return context | {"mode": "pairs", "page": reading.page(PairFilter(clusters=only.clusters))}
    room = _matrix_rows(fleet, min(len(groups), _LISTED), len(scorers), only)
    if clusters <= _MATRIX_ROWS and clusters * len(scorers) <= 2000 and room > 0:
        page = _first_if_other(
            lambda cursor: reading.model.clusters(limit=room, names=only.clusters, cursor=cursor, paired=True), query
        )
        return context | {"mode": "matrix", "columns": scorers, "lines": page.clusters, "page": page}
    need_attention = (Verdict.FAILING, Verdict.EXPIRED, Verdict.SKIPPED, Verdict.NEVER, Verdict.EMPTY)
    pair_filter = PairFilter(clusters=only.clusters, states=need_attention)
    worst = _first_if_other(lambda cursor: reading.page(pair_filter, cursor), query)
    return context | {"mode": "large", "page": worst}


def _first_if_other(read: Callable[[str | None], _Page], query: Query) -> _Page:
    """Return the page after the cursor; the first page if the cursor is of the other list, for a smaller fleet."""
    try:
        return read(query.get("cursor") or None)
    except CursorError:
        return read(None)


def _matrix_rows(fleet: FleetOverview, groups: int, columns: int, only: ClusterSelection) -> int:
    """Most clusters in the matrix for a page of less than 5,000 elements.

    0 or less: no room.
    """
    bars: int = sum(15 + sum(number > 0 for _, number in scorer.states) for scorer in fleet.scorers[:_SCORERS])
    above = 185 + bars + 13 * groups + 8 * min(len(fleet.unready), _LISTED) + len(only.sets) + len(only.labels)
    return min(_MATRIX_ROWS, (4998 - above - 2 * columns) // (3 + 2 * columns))


def settings_in_force(sources: Sources, name: str) -> list[SettingView] | None:
    """Return the settings of a registered scorer; None if its DynamicScorer is unreadable.

    Raises UnknownScorerError.
    """
    record = sources.reading.registry.scorer(name)
    manifest = sources.scorer_object(name, record.namespace)
    if manifest is None:
        return None
    override = sources.reading.schedule.overrides_of(name, []).get(scorer_target(name))
    interval = override.interval if override is not None else None
    return settings_of(manifest, override, validity_at(interval or record.interval, record.validity, record.interval))


def _scorer(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    name = names["scorer"]
    title = f"Scorer {name}"
    try:
        record = sources.reading.registry.scorer(name)
    except UnknownScorerError:
        unready = sources.reading.model.unready(name)
        if unready is None:
            raise
        manifest = sources.scorer_object(name, unready.namespace)
        settings = settings_of(manifest) if manifest else []
        hub = {"object": manifest, "settings": settings, "conditions": unready.conditions, "config": _config(manifest)}
        return {"title": title, "template": "unready.html", "unready": unready, **hub}
    manifest = sources.scorer_object(name, record.namespace)
    scorer = sources.reading.model.scorer(name)
    everywhere = scorer_target(name)
    scorer_overrides = [
        item for item in sources.reading.schedule.overrides().items() if keys.split_pair(item[0])[1] == name
    ]
    overrides = sorted(scorer_overrides, key=lambda item: (item[0] != everywhere, item[0]))
    return {
        "title": title,
        "record": record,
        "scorer": scorer,
        "validity": validity_at(scorer.effective_interval_seconds, record.validity, record.interval),
        "object": manifest,
        "settings": settings_in_force(sources, name) or [],
        "conditions": _conditions(manifest) if manifest else scorer.conditions,
        "config": _config(manifest, scorer.config_read),
        "groups": sources.reading.groups([scorer])[:_LISTED],
        "overrides": overrides[:_LISTED],
        "more_overrides": max(0, len(overrides) - _LISTED),
        "page": sources.reading.page(PairFilter(scorer=name), query.get("cursor")),
    }


def _conditions(scorer: DynamicScorer) -> list[ConditionView]:
    return [
        ConditionView(**condition.model_dump(exclude={"last_transition_time"}), since=condition.last_transition_time)
        for condition in scorer.status.conditions
    ]


def _config(scorer: DynamicScorer | None, read: datetime | None = None) -> dict[str, Any]:
    """Return the last known /config: its text, since when, when it was last read, and whether it is still valid."""
    synced = scorer.status.last_synced_config if scorer else None
    if scorer is None or synced is None:
        return {}
    condition = next((condition for condition in scorer.status.conditions if condition.type == "ConfigSynced"), None)
    text = json.dumps(shown_config(synced), indent=2)
    return {"text": text, "since": scorer.status.last_synced_config_time, "read": read, "condition": condition}


def _cluster(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    name = names["cluster"]
    cluster, agent = sources.reading.model.cluster(name), Agents(sources.reading.redis).one(name)
    return {
        "title": f"Cluster {name}",
        "cluster": cluster,
        "messages": agent.schema_version if agent else None,
        "page": sources.reading.page(PairFilter(clusters=[name]), query.get("cursor")),
        "not_here": [
            (record, cluster.absent.get(scorer) or record.problem or "not distributed yet")
            for scorer, record in sorted(sources.reading.registry.scorers().items())
            if scorer not in cluster.scorers
        ],
    }


def _pair(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    row, detail = sources.reading.pair(names["cluster"], names["scorer"])
    cycles = detail.cycles[:50]
    return {
        "title": f"{names['scorer']} on {names['cluster']}",
        "row": row,
        "pair": detail,
        "cycles": cycles,
        "longest": max((sum(cycle.timings.values()) for cycle in cycles), default=0.0) or 1.0,
        "items": detail.score_items[:PAGE_ROWS],
        "more_items": max(0, len(detail.score_items) - PAGE_ROWS),
        "commands": _commands(row, sources.reading.registry.scorer(row.scorer).namespace),
        "asked_for": query.get("run", ""),
    }


def _commands(row: TableRow, namespace: str) -> list[str]:
    """Commands for further diagnosis of a pair, whose scorer is in this namespace."""
    cluster, scorer = shlex.quote(row.cluster), shlex.quote(row.scorer)
    name = sanitize_resource_name(row.entry.score_name if row.entry else row.scorer)
    where = f"-n {shlex.quote(namespace)}" if namespace else "-A"
    return [
        f"dsf explain {scorer} --cluster {cluster}",
        f"dsf history {scorer} --cluster {cluster}",
        f"kubectl describe dynamicscorer {scorer} {where}",
        f"kubectl get addonplacementscore {shlex.quote(name)} -n {cluster} -o yaml",
        f"kubectl get manifestwork dynamic-scoring-config-manifestwork -n {cluster} -o yaml",
        "# on the managed cluster",
        "kubectl -n dynamic-scoring logs deploy/dynamic-scoring-agent --since=10m",
    ]


def _changes(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    scorer, cluster = query.get("scorer") or None, query.get("cluster") or None
    cursor = query.get("cursor") or None
    change_list = changes.read(sources.reading.redis, limit=PAGE_ROWS, cursor=cursor, scorer=scorer, cluster=cluster)
    only = {name: text for name, text in (("scorer", scorer), ("cluster", cluster)) if text}
    return {"title": "Changes", "changes": change_list, "only": only}


VIEWS: Final = (
    PageView("/", "fleet.html", _fleet, knows=("cursor", "set", "label")),
    PageView("/scorers/{scorer}", "scorer.html", _scorer, acts=True),
    PageView("/clusters/{cluster}", "cluster.html", _cluster),
    PageView("/clusters/{cluster}/scorers/{scorer}", "pair.html", _pair, acts=True, knows=("run",)),
    PageView("/changes", "changes.html", _changes, knows=("cursor", "scorer", "cluster")),
    PageView("/find", "find.html", find, knows=("cursor", "q")),
    PageView("/outcomes/{ident}", "outcome.html", outcome),
    PageView("/parts", "parts.html", group_page, knows=("cursor", "by")),
)
