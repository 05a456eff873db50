"""Reads the data of the pages from `dsf.fleet` and the stores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import redis

from dsf import keys
from dsf.fleet.pairviews import entry_view
from dsf.fleet.queries import FleetQueries
from dsf.fleet.selection import PairFilter
from dsf.fleet.snapshot import every
from dsf.fleet.verdict import Verdict
from dsf.fleet.views import EntryView, PairDetail, PairRow, ReasonGroup, ScorerOverview
from dsf.messages import run_time
from dsf.process import hubclock
from dsf.store.entries import TOLERANCE, Effective, effective, interval_in_force, is_slot
from dsf.store.pairs import Pairs, PairScore
from dsf.store.registry import Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore
from dsf.web.states import STATES, State

#: Most rows of a page. A row has at most some 20 elements, and a page may have 5,000.
PAGE_ROWS: Final = 100
_WORST_FIRST: Final = list(Verdict)


class Why(NamedTuple):
    """Why a pair has no fresh score. `at` is unix seconds, 0 if unknown."""

    stage: str
    reason: str
    message: str
    at: float = 0.0


@dataclass(frozen=True)
class TableRow:
    """A pair with the data of a table row."""

    cluster: str
    scorer: str
    data: PairRow
    state: State
    why: Why | None
    score: PairScore | None
    expired: bool
    entry: EntryView | None

    @property
    def values(self) -> list[int]:
        """Values of the items, highest first; none if the score is invalid."""
        return [] if self.score is None or self.expired else sorted((v for _, v in self.score.items), reverse=True)


@dataclass(frozen=True)
class Rows:
    """A page of pairs, worst first; `cursor` leads to the next page, None on the last."""

    rows: list[TableRow]
    total: int
    cursor: str | None


class Reading:
    """Reads for the pages. Thread-safe.

    Methods raise redis.RedisError if Redis is unreadable, and UnknownScorerError, UnknownClusterError, QueryError or
    CursorError for unknown names and invalid queries.
    """

    def __init__(self, client: redis.Redis) -> None:
        self.redis = client
        self.registry = Registry(client)
        self.schedule = ScheduleStore(client)
        self._pairs = Pairs(client)
        #: Has the rows of all pairs in memory, and what needs no more than those.
        self.model = FleetQueries(client)

    def groups(self, scorers: Iterable[ScorerOverview]) -> list[ReasonGroup]:
        """Problems of scorers, worst first."""
        groups: list[ReasonGroup] = []
        wordless = 0
        for scorer in scorers:
            groups += scorer.reasons
            # Pairs without a stored reason are grouped by state.
            for state in (Verdict.EXPIRED, Verdict.NEVER, Verdict.EMPTY, Verdict.PAUSED):
                # Pairs with a remark are in a group.
                grouped = sum(group.clusters for group in scorer.reasons if group.state is state)
                number = max(0, getattr(scorer.states, state.value) - grouped)
                # For each of them one pair is read.
                if number and wordless < 20:
                    wordless += 1
                    example_rows = self.page(PairFilter(scorer=scorer.name, states=[state]), limit=1).rows
                    why = (example_rows[0].why if example_rows else None) or Why("", "", STATES[state].help)
                    group = ReasonGroup(
                        scorer=scorer.name,
                        state=state,
                        stage=why.stage,
                        reason=why.reason,
                        clusters=number,
                        cluster=example_rows[0].cluster if example_rows else "",
                        at=why.at or None,
                        message=why.message,
                    )
                    groups.append(group)
        return sorted(groups, key=lambda group: (_WORST_FIRST.index(group.state), -group.clusters, group.scorer))

    def page(self, pair_filter: PairFilter, cursor: str | None = None, *, limit: int = PAGE_ROWS) -> Rows:
        """Matching pairs, worst first; after a cursor, if there is one."""
        page = self.model.pairs(pair_filter, limit=limit, cursor=cursor or None)
        return Rows(self.rows(page.pairs), page.total, page.cursor)

    def rows(self, pairs: Iterable[PairRow]) -> list[TableRow]:
        """Rows of tables, in their order, with scores and schedule."""
        models = {keys.pair(row.cluster, row.scorer): row for row in pairs}
        now, overrides, due = hubclock.now(), self.schedule.overrides(), self.schedule.due_times(models)
        entries = {
            entry.pair: entry_view(entry, overrides, due.get(entry.pair), now)
            for entry in self.schedule.entries(models)
        }
        records = self.registry.scorers()
        rows = []
        for data in self._pairs.states(map(keys.split_pair, models)):
            row, entry, score = models[data.pair], entries.get(data.pair), data.score
            expired = score is not None and score.valid_until <= now
            # Tables name items and no results: a score may have 10,000, and hundreds of rows are read at once.
            if score is not None:
                score = score.model_copy(update={"results": score.results[:1]})
            why = _why(row, records.get(row.scorer), entry)
            rows.append(TableRow(row.cluster, row.scorer, row, STATES[row.state], why, score, expired, entry))
        return rows

    def cluster_names(self) -> list[str]:
        """Return all accepted clusters, sorted."""
        return sorted(str(name) for name in self.redis.hkeys(keys.CLUSTERS))

    def targets(self, scorer: str) -> dict[str, Effective]:
        """Return the clusters on which a scorer runs, sorted, and the schedule in force on each."""
        overrides, now = self.schedule.overrides(), hubclock.now()
        return {entry.cluster: effective(entry, overrides, now) for entry in self.schedule.entries_of(scorer)}

    def pair(self, cluster: str, scorer: str) -> tuple[TableRow, PairDetail]:
        """One pair."""
        detail = self.model.pair(cluster, scorer)
        return self.rows([detail])[0], detail

    def runs(self, rows: Sequence[TableRow]) -> list[list[str]]:
        """Return the known run ids of each pair: past cycles and that of its score."""
        past = self._pairs.past_runs((row.cluster, row.scorer) for row in rows)
        return [[*runs, *([row.score.run] if row.score else [])] for row, runs in zip(rows, past, strict=True)]

    def of_run(self, run: str, pair_filter: PairFilter) -> list[TableRow]:
        """Return the pair with this scheduled run: the id contains the time, at which few pairs are due."""
        at = run_time(run) + TOLERANCE / 2
        records, overrides = self.registry.scorers(), self.schedule.overrides()
        due = [
            (row.cluster, row.scorer)
            for row in every(self.model.rows())
            if row.scorer in records
            and (pair_filter.scorers is None or row.scorer in pair_filter.scorers)
            and (pair_filter.clusters is None or row.cluster in pair_filter.clusters)
            and is_slot(
                row.pair, interval_in_force(row.scorer, row.cluster, records[row.scorer].interval, overrides), at
            )
        ]
        pairs_of_run = [pair for pair, runs in zip(due, self._pairs.past_runs(due), strict=True) if run in runs]
        pages = (
            self.page(replace(pair_filter, scorer=scorer, clusters=[cluster]), limit=1)
            for cluster, scorer in pairs_of_run
        )
        return [row for page in pages for row in page.rows]


def _why(row: PairRow, record: ScorerRecord | None, entry: EntryView | None) -> Why | None:
    """Why a pair has no score, or not all of it; None if it has."""
    failure, skips = row.failure, row.skips
    if row.state in (Verdict.OK, Verdict.EMPTY) and row.remark is not None:
        failure = row.remark
    elif row.state is Verdict.OK:
        return None
    elif row.state is Verdict.PAUSED:
        return Why("", "paused", _paused_by(entry) if entry else STATES[row.state].help)
    if failure is not None:
        return Why(failure.stage, failure.reason, failure.message, failure.at.timestamp())
    if skips is not None:
        return Why("", skips.reason, skips.message, skips.since.timestamp())
    if record is not None and record.problem:
        reason, _, text = record.problem.partition(": ")
        return Why("", reason, text or reason)
    return Why("", "", STATES[row.state].help)


def _paused_by(view: EntryView) -> str:
    """Who paused a pair and why, as a sentence."""
    until = f" until {view.paused_until:%Y-%m-%d %H:%M} UTC" if view.paused_until else ""
    by = next((override for override in view.overrides if override.target == view.paused_source), None)
    if by is None:
        return f"suspended by its DynamicScorer{until}, or its cluster or the configuration is gone"
    return f"paused by {by.by or 'unknown'}{until}{': ' if by.note else ''}{by.note}"
