"""Search for pairs, scorers and clusters.

A query such as `state:failing reason:bad_query cluster:eu-*` consists of terms with a field and of words without one.
A pair must match all of them. `*` stands for any text. Words are searched in the names of cluster, scorer and score,
and in the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsf.fleet.selection import MAX_ROWS, PairFilter
from dsf.fleet.verdict import Verdict
from dsf.fleet.views import PairRow, ScorerOverview
from dsf.messages import is_run_id
from dsf.store.notices import CLUSTER_SET
from dsf.store.pairs import PairScore
from dsf.web.pagedata import PAGE_ROWS, PageDataReader, ScoreBudget, TablePage, TableRow
from dsf.web.pages import Query, Sources
from dsf.web.states import STATES

#: Searchable fields. A search for `item` or `run` reads the stored data of each pair.
FIELDS: Final = ("state", "reason", "stage", "cluster", "set", "label", "scorer", "item", "run")
#: Case-sensitive fields, because label values are case-sensitive in Kubernetes.
_CASE_SENSITIVE_FIELDS: Final = ("set", "label")
_TERM_PATTERN: Final = re.compile(r'(?:(\w+):)?(?:"([^"]*)"|(\S+))')
#: Maximum characters of a query. The rest is ignored.
_MAX_QUERY_LENGTH: Final = 500


@dataclass(frozen=True)
class SearchQuery:
    """A parsed query: pairs of field and pattern, words without a field, and names of unknown fields."""

    text: str
    terms: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    unknown: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.terms or self.words)

    def list_patterns(self, field: str) -> list[str]:
        """Return the patterns of one field, in lower case unless the field is case-sensitive."""
        return [pattern for name, pattern in self.terms if name == field]

    def matches(self, field: str, value: str) -> bool:
        """Return True if the value matches all patterns of the field."""
        return matches_all(value, self.list_patterns(field), case_sensitive=field in _CASE_SENSITIVE_FIELDS)


def parse_query(text: str) -> SearchQuery:
    """Return a user's query as fields and words. Any text is valid."""
    text = text[:_MAX_QUERY_LENGTH].strip()
    terms, words, unknown_fields = [], [], []
    for name, quoted_value, plain_value in _TERM_PATTERN.findall(text):
        field, value = name.lower(), (quoted_value or plain_value)
        if field not in _CASE_SENSITIVE_FIELDS:
            value = value.lower()
        if field in FIELDS:
            terms.append((field, value))
        elif name:
            unknown_fields.append(name)
        elif value:
            words.append(value)
    return SearchQuery(text, tuple(terms), tuple(words), tuple(unknown_fields))


def matches_pattern(value: str, pattern: str, *, case_sensitive: bool = False) -> bool:
    """Return True if a value matches a pattern.

    The pattern must be in lower case unless `case_sensitive`. Only `*` is special; brackets and question marks are
    literal.
    """
    # Do not use regular expressions, because a pattern such as `*a*a*a*~` may take exponential time. Do not use
    # fnmatch, because it caches up to 32,768 compiled patterns.
    value = value if case_sensitive else value.lower()
    prefix, *middle_parts = pattern.split("*")
    if not middle_parts:
        return value == prefix
    suffix = middle_parts.pop()
    position, end = len(prefix), len(value) - len(suffix)
    if position > end or not (value.startswith(prefix) and value.endswith(suffix)):
        return False
    for part in middle_parts:
        position = value.find(part, position, end)
        if position < 0:
            return False
        position += len(part)
    return True


def matches_all(value: str, patterns: Iterable[str], *, case_sensitive: bool = False) -> bool:
    """Return True if a value matches all patterns."""
    return all(matches_pattern(value, pattern, case_sensitive=case_sensitive) for pattern in patterns)


def quote_term(text: str) -> str:
    """Return the text as the value of one term, in quotes if it is empty or contains spaces or quotes."""
    return f'"{text}"' if not text or re.search(r'[\s"]', text) else text


#: Maximum pairs that a search for items or runs reads from Redis, because the rows in memory contain neither.
_MAX_READ: Final = 1000
#: Maximum scorers and clusters that the page lists above the pairs.
_MAX_LISTED_SCORERS: Final = 200
_MAX_LISTED_CLUSTERS: Final = 50


@dataclass(frozen=True)
class _Criteria:
    """A resolved query: which pairs, items and runs match, and which scorers and clusters the page lists.

    No pair matches if `pair_filter` is None.
    """

    pair_filter: PairFilter | None
    scorers: list[ScorerOverview]
    clusters: list[str]
    items: list[str]
    runs: list[str]


@dataclass(frozen=True)
class _SearchPage(TablePage):
    """The first matching pairs, their total, the number of pairs searched (`read`), and that of candidates (`of`)."""

    read: int
    of: int
    #: Number of pairs that were not searched, because their scores are too large to be parsed for one request.
    omitted: int = 0


def build_search_page(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    """Return the data of the search page. The module's docstring describes the language of the parameter `q`."""
    reading, search_query = sources.reading, parse_query(query.get("q", ""))
    criteria = _resolve_query(reading, search_query) if search_query else _Criteria(None, [], [], [], [])
    page = TablePage([], 0, None)
    if criteria.pair_filter is not None:
        reads_pairs = bool(criteria.items or criteria.runs)
        page = (
            _search_rows(reading, criteria, criteria.pair_filter)
            if reads_pairs
            else reading.read_page(criteria.pair_filter, query.get("cursor"))
        )
    return {
        "title": f"Search: {search_query.text}" if search_query.text else "Search",
        "asked": search_query,
        "fields": FIELDS,
        "scorers": criteria.scorers[:_MAX_LISTED_SCORERS],
        "clusters": criteria.clusters[:_MAX_LISTED_CLUSTERS],
        "page": page,
        "looked": page if isinstance(page, _SearchPage) else None,
    }


def _resolve_query(reading: PageDataReader, search_query: SearchQuery) -> _Criteria:
    """Return the criteria of a query.

    A word is interpreted as the first of these that applies: a run id, a part of a scorer's name, a state, a reason, a
    part of a cluster's name, an item.
    """
    fleet = reading.fleet_queries.summary()
    has_label_terms = bool(search_query.list_patterns("set") or search_query.list_patterns("label"))
    names = reading.list_cluster_names() if search_query.list_patterns("cluster") or search_query.words else []
    scorers = [scorer for scorer in fleet.scorers if search_query.matches("scorer", scorer.name)]
    clusters = [name for name in names if search_query.matches("cluster", name)]
    if has_label_terms:
        clusters = select_labelled_clusters(
            reading.fleet_queries.labels(), search_query, clusters if names else reading.list_cluster_names()
        )
    states = [name for name in STATES if search_query.matches("state", name)]
    reasons, stages = search_query.list_patterns("reason"), search_query.list_patterns("stage")
    items, runs = search_query.list_patterns("item"), search_query.list_patterns("run")
    restricts_clusters = has_label_terms or bool(search_query.list_patterns("cluster"))
    all_reasons = reading.fleet_queries.reasons([scorer.name for scorer in scorers]) if search_query.words else set()
    listed_scorers = list(scorers) if any("*" in pattern for pattern in search_query.list_patterns("scorer")) else []
    listed_clusters: list[str] = []
    for word in search_query.words:
        matching_scorers = [scorer for scorer in scorers if word in scorer.name or word in scorer.score_name.lower()]
        matching_clusters = [name for name in clusters if word in name]
        listed_scorers += matching_scorers
        listed_clusters += matching_clusters
        if is_run_id(word):
            runs.append(word)
        elif matching_scorers:
            scorers = matching_scorers
        elif word in STATES:
            states = [name for name in states if name == word]
        elif any(word in reason for reason in all_reasons):
            reasons.append(f"*{word}*")
        elif matching_clusters:
            clusters, restricts_clusters = matching_clusters, True
        else:
            items.append(f"*{word}*")
    pair_filter = None
    if states and scorers and (clusters or not restricts_clusters):
        pair_filter = PairFilter(
            scorers=None if len(scorers) == len(fleet.scorers) else {scorer.name for scorer in scorers},
            clusters=clusters if restricts_clusters else None,
            states=[Verdict(name) for name in states] if len(states) < len(STATES) else None,
            matches_failure=(lambda stage, reason: matches_all(stage, stages) and matches_all(reason, reasons))
            if stages or reasons
            else None,
        )
    # Check a repeated pattern once, because each pattern is compared with tens of thousands of items.
    return _Criteria(pair_filter, listed_scorers, listed_clusters, list(dict.fromkeys(items)), runs)


def _search_rows(reading: PageDataReader, criteria: _Criteria, pair_filter: PairFilter) -> _SearchPage:
    """Return the matching pairs, worst first.

    For the id of a scheduled run, only the pair with this run is read.
    """
    budget = ScoreBudget()
    for run in filter(is_run_id, criteria.runs):
        pair_rows = reading.find_rows_of_run(run, pair_filter)
        if pair_rows:
            matching_rows = _read_matching_rows(reading, criteria, pair_rows, budget)
            count = len(pair_rows)
            return _SearchPage(matching_rows[:PAGE_ROWS], len(matching_rows), None, read=count, of=count)
    page_rows: list[TableRow] = []
    match_count, read_count, cursor = 0, 0, None
    while True:
        page = reading.fleet_queries.pairs(pair_filter, limit=MAX_ROWS, cursor=cursor)
        matching_rows = _read_matching_rows(reading, criteria, page.pairs, budget)
        page_rows += matching_rows[: PAGE_ROWS - len(page_rows)]
        match_count, read_count, cursor = match_count + len(matching_rows), read_count + len(page.pairs), page.cursor
        if cursor is None or read_count >= _MAX_READ:
            # The total may be less than the number of pairs read, because pairs may be removed between two reads.
            total = max(read_count, page.total)
            omitted_count = len(budget.omitted_pairs) if criteria.items else 0
            return _SearchPage(page_rows, match_count, None, read_count - omitted_count, total, omitted_count)


def _read_matching_rows(
    reading: PageDataReader, criteria: _Criteria, pair_rows: Iterable[PairRow], budget: ScoreBudget
) -> list[TableRow]:
    """Return the rows with a matching item in the score and a matching run among the last cycles."""

    def has_match(names: Iterable[str], patterns: list[str]) -> bool:
        return not patterns or any(matches_all(name, patterns) for name in names)

    def has_matching_item(score: PairScore | None) -> bool:
        return has_match((name for name, _ in score.items) if score is not None else (), criteria.items)

    rows = reading.read_rows(pair_rows, has_matching_item if criteria.items else None, budget)
    runs = reading.read_run_ids(rows) if criteria.runs else [[] for _ in rows]
    return [row for row, pair_runs in zip(rows, runs, strict=True) if has_match(pair_runs, criteria.runs)]


def select_labelled_clusters(
    labels: Mapping[str, Mapping[str, str]], search_query: SearchQuery, clusters: Iterable[str]
) -> list[str]:
    """Return the clusters in the requested ClusterSets and with the requested labels.

    `labels` maps the names of clusters to their labels. A cluster without an entry has no labels.
    """
    no_labels: dict[str, str] = {}

    def is_selected(cluster_labels: Mapping[str, str]) -> bool:
        assignments = [f"{key}={value}" for key, value in cluster_labels.items()]
        return search_query.matches("set", cluster_labels.get(CLUSTER_SET, "")) and all(
            any(matches_pattern(assignment, pattern, case_sensitive=True) for assignment in assignments)
            for pattern in search_query.list_patterns("label")
        )

    return [name for name in clusters if is_selected(labels.get(name, no_labels))]
