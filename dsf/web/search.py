"""Search for pairs, scorers and clusters: `state:failing reason:bad_query cluster:eu-*`, and words.

All terms must match; `*` is any text. A word without a field is searched in the names of cluster, scorer and score and
in the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsf.fleet.selection import MAX_ROWS, PairFilter
from dsf.fleet.verdict import Verdict
from dsf.fleet.views import ScorerOverview
from dsf.messages import is_run_id
from dsf.store.notices import CLUSTER_SET
from dsf.web.pagedata import PAGE_ROWS, Reading, Rows, TableRow
from dsf.web.pages import Query, Sources
from dsf.web.states import STATES

#: Searchable fields. `item` and `run` need the data of each pair.
FIELDS: Final = ("state", "reason", "stage", "cluster", "set", "label", "scorer", "item", "run")
#: Case-sensitive fields, as in Kubernetes.
_EXACT: Final = ("set", "label")
_TERM: Final = re.compile(r'(?:(\w+):)?(?:"([^"]*)"|(\S+))')


@dataclass(frozen=True)
class SearchQuery:
    """A parsed query. `unknown` has invalid field names."""

    text: str
    terms: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    unknown: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.terms or self.words)

    def of(self, field: str) -> list[str]:
        """Return the patterns of one field; in lower case unless it is case-sensitive."""
        return [pattern for name, pattern in self.terms if name == field]

    def allows(self, field: str, value: str) -> bool:
        """True if this value matches all patterns of the field."""
        return fits_all(value, self.of(field), exact=field in _EXACT)


def parse(text: str) -> SearchQuery:
    """Parse a user's query. Never fails."""
    text = text[:500].strip()
    terms, words, unknown = [], [], []
    for name, quoted, bare in _TERM.findall(text):
        field, value = name.lower(), (quoted or bare)
        if field not in _EXACT:
            value = value.lower()
        if field in FIELDS:
            terms.append((field, value))
        elif name:
            unknown.append(name)
        elif value:
            words.append(value)
    return SearchQuery(text, tuple(terms), tuple(words), tuple(unknown))


def fits(value: str, pattern: str, *, exact: bool = False) -> bool:
    """True if a value matches a pattern, which is in lower case unless `exact`. Brackets and question marks are
    literal.
    """
    # The match is neither a regular expression, of which `*a*a*a*~` could take forever, nor fnmatch, which keeps 32,768
    # of them.
    value = value if exact else value.lower()
    first, *middle = pattern.split("*")
    if not middle:
        return value == first
    last = middle.pop()
    place, end = len(first), len(value) - len(last)
    if place > end or not (value.startswith(first) and value.endswith(last)):
        return False
    for part in middle:
        place = value.find(part, place, end)
        if place < 0:
            return False
        place += len(part)
    return True


def fits_all(value: str, patterns: Iterable[str], *, exact: bool = False) -> bool:
    """True if a value matches all patterns."""
    return all(fits(value, pattern, exact=exact) for pattern in patterns)


def quoted(text: str) -> str:
    """Return the text as one term's value."""
    return f'"{text}"' if not text or re.search(r'[\s"]', text) else text


#: Most pairs that a search for items or runs reads: the rows in memory have neither.
_MAX_READ: Final = 1000


@dataclass(frozen=True)
class _Criteria:
    """A resolved query: the pairs of `pair_filter` (None: none) with these items and runs."""

    pair_filter: PairFilter | None
    scorers: list[ScorerOverview]
    clusters: list[str]
    items: list[str]
    runs: list[str]


@dataclass(frozen=True)
class _SearchedRows(Rows):
    """The first matching pairs and their number, the number of read pairs, and the total number of candidates."""

    read: int
    of: int


def find(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    """Data of the search page; see the module for the language of `q`."""
    reading, search_query = sources.reading, parse(query.get("q", ""))
    criteria = _interpret(reading, search_query) if search_query else _Criteria(None, [], [], [], [])
    page = Rows([], 0, None)
    if criteria.pair_filter is not None:
        reads_pairs = bool(criteria.items or criteria.runs)
        page = (
            _search_rows(reading, criteria, criteria.pair_filter)
            if reads_pairs
            else reading.page(criteria.pair_filter, query.get("cursor"))
        )
    return {
        "title": f"Search: {search_query.text}" if search_query.text else "Search",
        "asked": search_query,
        "fields": FIELDS,
        "scorers": criteria.scorers[:200],
        "clusters": criteria.clusters[:50],
        "page": page,
        "looked": page if isinstance(page, _SearchedRows) else None,
    }


def _interpret(reading: Reading, search_query: SearchQuery) -> _Criteria:
    """Return a word is, in this order, a run id, part of a scorer's name, a state, a reason, a cluster or an item."""
    fleet = reading.model.summary()
    by_label = bool(search_query.of("set") or search_query.of("label"))
    names = reading.cluster_names() if search_query.of("cluster") or search_query.words else []
    scorers = [scorer for scorer in fleet.scorers if search_query.allows("scorer", scorer.name)]
    clusters = [name for name in names if search_query.allows("cluster", name)]
    if by_label:
        clusters = clusters_with_labels(
            reading.model.labels(), search_query, clusters if names else reading.cluster_names()
        )
    states = [name for name in STATES if search_query.allows("state", name)]
    reasons, stages = list(search_query.of("reason")), list(search_query.of("stage"))
    items, runs = list(search_query.of("item")), list(search_query.of("run"))
    named_clusters = by_label or bool(search_query.of("cluster"))
    all_reasons = reading.model.reasons([scorer.name for scorer in scorers]) if search_query.words else set()
    shown_scorers = list(scorers) if any("*" in pattern for pattern in search_query.of("scorer")) else []
    shown_clusters: list[str] = []
    for word in search_query.words:
        of_scorers = [scorer for scorer in scorers if word in scorer.name or word in scorer.score_name.lower()]
        of_clusters = [name for name in clusters if word in name]
        shown_scorers += of_scorers
        shown_clusters += of_clusters
        if is_run_id(word):
            runs.append(word)
        elif of_scorers:
            scorers = of_scorers
        elif word in STATES:
            states = [name for name in states if name == word]
        elif any(word in reason for reason in all_reasons):
            reasons.append(f"*{word}*")
        elif of_clusters:
            clusters, named_clusters = of_clusters, True
        else:
            items.append(f"*{word}*")
    pair_filter = None
    if states and scorers and (clusters or not named_clusters):
        pair_filter = PairFilter(
            scorers=None if len(scorers) == len(fleet.scorers) else {scorer.name for scorer in scorers},
            clusters=clusters if named_clusters else None,
            states=[Verdict(name) for name in states] if len(states) < len(STATES) else None,
            why=(lambda stage, reason: fits_all(stage, stages) and fits_all(reason, reasons))
            if stages or reasons
            else None,
        )
    return _Criteria(pair_filter, shown_scorers, shown_clusters, items, runs)


def _search_rows(reading: Reading, criteria: _Criteria, pair_filter: PairFilter) -> _SearchedRows:
    """Read pairs, worst first; for a run id, first those that were due at its time."""
    for run in filter(is_run_id, criteria.runs):
        rows = reading.of_run(run, pair_filter)
        if rows:
            matching_rows = _matching_rows(reading, criteria, rows)
            return _SearchedRows(matching_rows[:PAGE_ROWS], len(matching_rows), None, read=len(rows), of=len(rows))
    first: list[TableRow] = []
    number, read, cursor = 0, 0, None
    while True:
        page = reading.page(pair_filter, cursor, limit=MAX_ROWS)
        matching_rows = _matching_rows(reading, criteria, page.rows)
        first += matching_rows[: PAGE_ROWS - len(first)]
        number, read, cursor = number + len(matching_rows), read + len(page.rows), page.cursor
        if cursor is None or read >= _MAX_READ:
            # Pairs may be removed meanwhile.
            return _SearchedRows(first, number, None, read, of=max(read, page.total))


def _matching_rows(reading: Reading, criteria: _Criteria, rows: list[TableRow]) -> list[TableRow]:
    """Return the rows with such an item, and such a run among their last cycles."""

    def has(names: Iterable[str], patterns: list[str]) -> bool:
        return not patterns or any(fits_all(name, patterns) for name in names)

    rows = [row for row in rows if has((name for name, _ in row.score.items) if row.score else (), criteria.items)]
    runs = reading.runs(rows) if criteria.runs else [[] for _ in rows]
    return [row for row, pair_runs in zip(rows, runs, strict=True) if has(pair_runs, criteria.runs)]


def clusters_with_labels(
    labels: Mapping[str, Mapping[str, str]], search_query: SearchQuery, clusters: Iterable[str]
) -> list[str]:
    """Return the clusters in the requested ClusterSets and with the requested labels; `labels` by cluster."""
    none: dict[str, str] = {}

    def is_selected(cluster_labels: Mapping[str, str]) -> bool:
        texts = [f"{key}={value}" for key, value in cluster_labels.items()]
        return search_query.allows("set", cluster_labels.get(CLUSTER_SET, "")) and all(
            any(fits(text, pattern, exact=True) for text in texts) for pattern in search_query.of("label")
        )

    return [name for name in clusters if is_selected(labels.get(name, none))]
