"""The pages: which template with what. A page is the same for everybody who may look."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dsf.api.naming import sanitize_resource_name
from dsf.api.scorer import DynamicScorer
from dsf.web import search
from dsf.web.objects import HubObjects, settings_of
from dsf.web.reading import Fleet, Pair, Reading, Row
from dsf.web.states import RANK

#: Rows of a page. A row has some 20 elements at most, and a page may have 5,000.
PAGE_ROWS: Final = 100
#: Pairs that the first page shows one by one, with their values; clusters and scorers that fit into a matrix.
_FEW_PAIRS: Final = 60
_MATRIX_ROWS: Final = 200
_MATRIX_COLUMNS: Final = 20
_MATRIX_CELLS: Final = 2000
#: Failure groups of a page.
_GROUPS: Final = 30
#: Pairs of which the scores are read for a picture of all values.
_VALUES: Final = 500
#: Pairs that are read for what a glance does not show, such as the names of items.
_READ: Final = 1000

Query = Mapping[str, str]


@dataclass(frozen=True)
class Sources:
    """Where pages read from."""

    reading: Reading
    objects: HubObjects


@dataclass(frozen=True)
class View:
    """One page: its path, its template, the name in its title, and what is put into the template."""

    path: str
    template: str
    build: Callable[[Sources, Mapping[str, str], Query], dict[str, Any]]
    #: Whether it follows what happens.
    live: bool = True


@dataclass(frozen=True)
class Paging:
    """Some of many; numbers count from 1."""

    number: int
    last: int
    total: int
    first: int

    @property
    def to(self) -> int:
        """The last one that is shown."""
        return min(self.total, self.first + PAGE_ROWS - 1)


def _page(items: Sequence[Pair], query: Query) -> tuple[list[Pair], Paging]:
    last = max(1, math.ceil(len(items) / PAGE_ROWS))
    text = query.get("page", "1")
    number = min(last, max(1, int(text))) if text.isascii() and text.isdigit() and len(text) < 9 else 1
    start = (number - 1) * PAGE_ROWS
    return list(items[start : start + PAGE_ROWS]), Paging(number, last, len(items), start + 1)


def _fleet(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    fleet = sources.reading.fleet()
    context: dict[str, Any] = {"title": "Fleet", "fleet": fleet, "groups": fleet.groups[:_GROUPS]}
    context["more_groups"] = max(0, len(fleet.groups) - _GROUPS)
    scorers = [one.record.name for one in fleet.scorers if one.total]
    if len(fleet.pairs) <= _FEW_PAIRS:
        return context | {"mode": "pairs", "rows": sources.reading.rows(fleet.worst_first())}
    clusters = sorted({cluster for cluster, _ in fleet.pairs})
    is_small = len(clusters) <= _MATRIX_ROWS and len(clusters) * len(scorers) <= _MATRIX_CELLS
    if is_small and len(scorers) <= _MATRIX_COLUMNS:
        return context | {"mode": "matrix", "columns": scorers, "lines": _matrix(fleet)}
    troubled = [pair for pair in fleet.worst_first() if fleet.state(pair).name != "ok"]
    shown, paging = _page(troubled, query)
    return context | {"mode": "large", "rows": sources.reading.rows(shown), "paging": paging}


def _matrix(fleet: Fleet) -> list[tuple[str, dict[str, Any], int]]:
    """(cluster, its pairs' states by scorer, how many need a person), worst first."""
    lines: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for cluster, scorer in fleet.pairs:
        lines[cluster][scorer] = fleet.state((cluster, scorer))

    def rank(line: dict[str, Any]) -> tuple[int, int]:
        ranks = [RANK[state.name] for state in line.values()]
        return (min(ranks), -sum(one < RANK["paused"] for one in ranks))

    ordered = sorted(lines, key=lambda name: (rank(lines[name]), name))
    bad = {name: sum(RANK[state.name] < RANK["paused"] for state in lines[name].values()) for name in ordered}
    return [(name, lines[name], bad[name]) for name in ordered]


def _scorer(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    name = names["scorer"]
    record = sources.reading.record(name)
    fleet = sources.reading.fleet()
    pairs = [pair for pair in fleet.worst_first() if pair[1] == name]
    shown, paging = _page(pairs, query)
    sample = sources.reading.rows(pairs[-_VALUES:])
    highest = [(row.values[0], row) for row in sample if row.values]
    highest.sort(key=lambda one: (-one[0], one[1].cluster))
    counts = next((one.counts for one in fleet.scorers if one.record.name == name), Counter[str]())
    seen = {(row.cluster, row.scorer): row for row in sample}
    missing = [pair for pair in shown if pair not in seen]
    seen |= {(row.cluster, row.scorer): row for row in sources.reading.rows(missing)}
    found = sources.objects.scorer(name)
    synced = found.status.last_synced_config if found else None
    return {
        "title": f"Scorer {name}",
        "record": record,
        "object": found,
        "settings": settings_of(found) if found else [],
        "config": json.dumps(synced.model_dump(mode="json", by_alias=True), indent=2) if synced else "",
        "config_since": _since(found, "ConfigSynced"),
        "counts": counts,
        "total": len(pairs),
        "groups": [group for group in fleet.groups if group.scorer == name][:_GROUPS],
        "overrides": sources.reading.overrides(name),
        "rows": [seen[pair] for pair in shown],
        "paging": paging,
        "values": [value for row in sample for value in row.values],
        "sampled": len(sample),
        "top": highest[:5],
        "bottom": highest[:-6:-1] if len(highest) > 5 else [],
    }


def _cluster(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    detail = sources.reading.cluster(names["cluster"])
    counts = Counter(row.state.name for row in detail.rows)
    return {"title": f"Cluster {names['cluster']}", "cluster": detail, "counts": counts, "rows": detail.rows}


def _pair(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    detail = sources.reading.pair(names["cluster"], names["scorer"])
    return {
        "title": f"{names['scorer']} on {names['cluster']}",
        "pair": detail,
        "row": detail.row,
        "rows": [detail.row],
        "cycles": detail.history.cycles,
        "items": _items(detail.row)[:PAGE_ROWS],
        "more_items": max(0, len(_items(detail.row)) - PAGE_ROWS),
        "commands": _commands(sources.objects.scorer(names["scorer"]), detail.row),
        "asked_for": query.get("run", ""),
    }


def _items(row: Row) -> list[tuple[str, int, float | None]]:
    """(name, value as written, value as scored) of the newest score; the last one is None when it is not known."""
    if row.score is None:
        return []
    results = [value for _, value in row.score.results]
    # What was refused or came twice has no item; then it is not known which is which.
    same = len(results) == len(row.score.items)
    return [(name, value, results[at] if same else None) for at, (name, value) in enumerate(row.score.items)]


def _commands(found: DynamicScorer | None, row: Row) -> list[str]:
    """What to type to go on."""
    cluster, scorer = shlex.quote(row.cluster), shlex.quote(row.scorer)
    name = sanitize_resource_name(row.entry.score_name if row.entry else row.scorer)
    where = f"-n {found.metadata.namespace}" if found and found.metadata.namespace else "-A"
    return [
        f"dsf explain {scorer} --cluster {cluster}",
        f"dsf history {scorer} --cluster {cluster}",
        f"kubectl describe dynamicscorer {scorer} {where}",
        f"kubectl get addonplacementscore {shlex.quote(name)} -n {cluster} -o yaml",
        f"kubectl get manifestwork dynamic-scoring-config-manifestwork -n {cluster} -o yaml",
        "# on the managed cluster",
        "kubectl -n dynamic-scoring logs deploy/dynamic-scoring-agent --since=10m",
    ]


def _since(found: DynamicScorer | None, condition: str) -> datetime | None:
    conditions = found.status.conditions if found else []
    return next((one.last_transition_time for one in conditions if str(one.type) == condition), None)


def _find(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    asked = search.parse(query.get("q", ""))
    fleet = sources.reading.fleet()
    scorers = [one.record for one in fleet.scorers]
    named = [one for one in scorers if asked.words and asked.has_words_in(one.name, one.score_name, one.description)]
    clusters = [one for one in fleet.clusters if asked.words and asked.has_words_in(one)]
    score_names = {one.name: one.score_name for one in scorers}
    pairs = [pair for pair in fleet.worst_first() if _matches(asked, fleet, pair, score_names)] if asked else []
    cut = 0
    if asked.of("item") or asked.of("run"):
        cut, pairs = max(0, len(pairs) - _READ), _deeper(sources.reading, asked, pairs[:_READ])
    shown, paging = _page(pairs, query)
    return {
        "title": f"Search: {asked.text}" if asked.text else "Search",
        "asked": asked,
        "fields": search.FIELDS,
        "scorers": named[:20],
        "clusters": clusters[:50],
        "rows": sources.reading.rows(shown),
        "paging": paging,
        "not_read": cut,
    }


def _matches(asked: search.Query, fleet: Fleet, pair: Pair, score_names: Mapping[str, str]) -> bool:
    why = fleet.whys.get(pair)
    reason, stage = (why.reason, why.stage) if why else ("", "")
    return (
        asked.allows("cluster", pair[0])
        and asked.allows("scorer", pair[1])
        and asked.allows("state", fleet.state(pair).name)
        and asked.allows("reason", reason)
        and asked.allows("stage", stage)
        and asked.has_words_in(pair[0], pair[1], score_names.get(pair[1], ""), reason, fleet.state(pair).name)
    )


def _deeper(reading: Reading, asked: search.Query, pairs: list[Pair]) -> list[Pair]:
    """Those of the pairs that have such items, or such runs among their last cycles."""
    found = []
    for row in reading.rows(pairs) if pairs else []:
        items = [name for name, _ in row.score.items] if row.score else []
        if asked.of("item") and not any(asked.allows("item", name) for name in items):
            continue
        if asked.of("run") and not any(asked.allows("run", run) for run in reading.runs(row)):
            continue
        found.append((row.cluster, row.scorer))
    return found


VIEWS: Final = (
    View("/", "fleet.html", _fleet),
    View("/scorers/{scorer}", "scorer.html", _scorer),
    View("/clusters/{cluster}", "cluster.html", _cluster),
    View("/clusters/{cluster}/scorers/{scorer}", "pair.html", _pair),
    View("/find", "find.html", _find),
)
