"""What the search box finds: pairs, scorers and clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsf.fleet.model import PairFilter
from dsf.fleet.overviews import ScorerOverview
from dsf.store.notices import CLUSTER_SET
from dsf.web import search
from dsf.web.reading import Reading, Row, Rows, states_named
from dsf.web.states import RANK, STATES

#: Pairs of one question that are read for what the model does not know, such as the names of items.
_READ: Final = 200
#: Questions to the model that one search may come to.
_QUESTIONS: Final = 20


@dataclass(frozen=True)
class _Meaning:
    """What a search comes to: pairs that fit one of `filters`."""

    filters: list[PairFilter]
    scorers: list[ScorerOverview]
    clusters: list[str]


def find(reading: Reading, text: str, limit: int, cursor: str | None) -> dict[str, Any]:
    """What the page of a search shows; see `search` for the language."""
    asked = search.parse(text)
    meaning = _meaning(reading, asked) if asked else _Meaning([], [], [])
    deep = bool(asked.of("item") or asked.of("run"))
    page = _pairs(reading, meaning.filters, _READ if deep else limit, None if deep else cursor)
    unread = 0
    if deep:
        unread = max(0, page.total - len(page.rows))
        fitting = [row for row in page.rows if _has(reading, asked, row)]
        page = Rows(fitting[:limit], len(fitting), None)
    return {
        "title": f"Search: {asked.text}" if asked.text else "Search",
        "asked": asked,
        "fields": search.FIELDS,
        "scorers": meaning.scorers[:20],
        "clusters": meaning.clusters[:50],
        "page": page,
        "unread": unread,
        "cut": max(0, page.total - len(page.rows)) if page.cursor is None and not cursor else 0,
    }


def _meaning(reading: Reading, asked: search.Query) -> _Meaning:
    """A word is a scorer's if one has it in its name, else a state, else a reason, else a cluster's."""
    fleet = reading.fleet()
    by_label = bool(asked.of("set") or asked.of("label"))
    names = reading.cluster_names() if asked.of("cluster") or asked.words or by_label else []
    scorers = [one for one in fleet.scorers if asked.allows("scorer", one.name)]
    clusters = [name for name in names if asked.allows("cluster", name)]
    if by_label:
        labels = reading.labels()
        clusters = [name for name in clusters if _is_labelled(asked, labels.get(name, {}))]
    states = [name for name in STATES if asked.allows("state", name)]
    reasons, stages = list(asked.of("reason")), list(asked.of("stage"))
    named_clusters = by_label or bool(asked.of("cluster"))
    shown_scorers: list[ScorerOverview] = []
    shown_clusters: list[str] = []
    for word in asked.words:
        of_scorers = [one for one in scorers if word in one.name or word in one.score_name.lower()]
        of_clusters = [name for name in clusters if word in name]
        shown_scorers += of_scorers
        shown_clusters += of_clusters
        if of_scorers:
            scorers = of_scorers
        elif word in STATES:
            states = [name for name in states if name == word]
        elif any(word in group.reason for one in scorers for group in one.reasons):
            reasons.append(f"*{word}*")
        else:
            clusters, named_clusters = of_clusters, True
    every = len(scorers) == len(fleet.scorers)
    wanted_clusters = clusters if named_clusters else None
    wanted_states = states_named(states) if len(states) < len(STATES) else None
    if wanted_clusters == [] or not states or not scorers:
        return _Meaning([], shown_scorers, shown_clusters)
    filters: list[PairFilter] = []
    if reasons or stages:
        for one in scorers:
            groups = {(group.stage, group.reason) for group in one.reasons}
            filters += [
                PairFilter(one.name, wanted_clusters, wanted_states, stage, reason)
                for stage, reason in sorted(groups)
                if all(search.fits(reason, text) for text in reasons)
                and all(search.fits(stage, text) for text in stages)
            ]
    else:
        filters = [PairFilter(None if every else one.name, wanted_clusters, wanted_states) for one in scorers]
        filters = filters[:1] if every else filters
    return _Meaning(filters[:_QUESTIONS], shown_scorers, shown_clusters)


def _is_labelled(asked: search.Query, labels: Mapping[str, str]) -> bool:
    """Whether a cluster is in the ClusterSet and has the labels, `KEY=VALUE`, that were asked for."""
    texts = [f"{key}={value}" for key, value in labels.items()]
    return asked.allows("set", labels.get(CLUSTER_SET, "")) and all(
        any(search.fits(text, pattern) for text in texts) for pattern in asked.of("label")
    )


def _pairs(reading: Reading, filters: list[PairFilter], limit: int, cursor: str | None) -> Rows:
    if len(filters) == 1:
        return reading.page(filters[0], limit, cursor)
    pages = [reading.page(one, limit) for one in filters]
    rows = sorted((row for page in pages for row in page.rows), key=lambda row: (RANK[row.state.name], row.cluster))
    return Rows(rows[:limit], sum(page.total for page in pages), None)


def _has(reading: Reading, asked: search.Query, row: Row) -> bool:
    """Whether a pair has such an item, and such a run among its last cycles."""
    items = [name for name, _ in row.score.items] if row.score else []
    if asked.of("item") and not any(asked.allows("item", name) for name in items):
        return False
    return not asked.of("run") or any(asked.allows("run", run) for run in reading.runs(row))
