"""Reads the data of the pages from `dsf.fleet` and the stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import redis

from dsf import keys
from dsf.fleet.pairviews import make_entry_view
from dsf.fleet.queries import FleetQueries
from dsf.fleet.selection import PairFilter
from dsf.fleet.snapshot import iter_rows
from dsf.fleet.verdict import Verdict
from dsf.fleet.views import EntryView, PairDetail, PairRow, ReasonGroup, ScorerOverview
from dsf.messages import run_time
from dsf.process import hubclock
from dsf.store.entries import SLOT_TOLERANCE, EffectiveSchedule, apply_overrides, find_interval, is_slot
from dsf.store.pairs import Pair, Pairs, PairScore
from dsf.store.registry import Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore
from dsf.web.states import STATES, State

#: Maximum rows of a table of pairs: about 2,000 elements, with 20 a row. A page has at most 5,000 elements in all.
PAGE_ROWS: Final = 100
#: Maximum bytes of large scores that one request parses, which takes a second or two.
MAX_SCORE_BYTES: Final = 8 * 1024 * 1024
#: Maximum groups of pairs without a stored reason per page, because each needs further reads. Others are omitted.
_MAX_EXAMPLE_READS: Final = 20
#: Order of states in lists, worst first.
_STATE_ORDER: Final = list(Verdict)


class ScoreBudget:
    """Limits the bytes of large scores that one request parses. Small scores are always parsed."""

    def __init__(self) -> None:
        self._remaining_bytes = MAX_SCORE_BYTES
        #: The pairs whose scores are not parsed.
        self.omitted_pairs: set[Pair] = set()

    def admits(self, pair: Pair, size: int) -> bool:
        """Return True if the score of a pair, with `size` bytes, is parsed."""
        if size > self._remaining_bytes:
            self.omitted_pairs.add(pair)
            return False
        self._remaining_bytes -= size
        return True


class ScoreProblem(NamedTuple):
    """The reason why a pair has no score, or an incomplete one."""

    #: Stage of the cycle in which the problem occurred; empty if it occurred in none.
    stage: str
    #: Short name of the reason; empty if only the message is known.
    reason: str
    message: str
    #: Time of the problem in unix seconds; 0 if unknown.
    at: float = 0.0


@dataclass(frozen=True)
class TableRow:
    """A pair of cluster and scorer with the data of its table row."""

    cluster: str
    scorer: str
    pair_row: PairRow
    state: State
    problem: ScoreProblem | None
    #: The newest score with its first item and result only. A score may have 10,000 of them, and hundreds of rows are
    #: read at once.
    score: PairScore | None
    expired: bool
    entry: EntryView | None
    #: Values of the items of the score, highest first; empty without a score or if the score has expired.
    values: tuple[int, ...] = ()
    #: Number of items with a held value, and one such value.
    held_count: int = 0
    held_value: int | None = None
    #: True if the score is too large to be read with the other scores of the request; then `score` is None.
    is_omitted: bool = False


@dataclass(frozen=True)
class TablePage:
    """A page of pairs, worst first. `cursor` selects the next page; it is None on the last page."""

    rows: list[TableRow]
    total: int
    cursor: str | None


class PageDataReader:
    """Reads the data of the pages from Redis. Thread-safe.

    Methods raise redis.RedisError if Redis is unreadable. They raise UnknownScorerError or UnknownClusterError for
    unknown names, and QueryError or CursorError for invalid queries.
    """

    def __init__(self, client: redis.Redis) -> None:
        self.redis = client
        self.registry = Registry(client)
        self.schedule = ScheduleStore(client)
        self._pairs = Pairs(client)
        #: Queries about the fleet, which read a snapshot of all rows in memory.
        self.fleet_queries = FleetQueries(client)

    def list_problem_groups(self, scorers: Iterable[ScorerOverview]) -> list[ReasonGroup]:
        """Return the problems of scorers, each with the number of affected clusters, worst first."""
        groups: list[ReasonGroup] = []
        example_reads = 0
        for scorer in scorers:
            groups += scorer.reasons
            # Group pairs without a stored reason by state. Pairs with a stored reason belong to the groups above.
            for state in (Verdict.EXPIRED, Verdict.NEVER_SUCCEEDED, Verdict.EMPTY, Verdict.PAUSED):
                grouped_cluster_count = sum(group.clusters for group in scorer.reasons if group.state is state)
                remaining_cluster_count = max(0, getattr(scorer.states, state.value) - grouped_cluster_count)
                if remaining_cluster_count and example_reads < _MAX_EXAMPLE_READS:
                    example_reads += 1
                    example_rows = self.read_page(PairFilter(scorer=scorer.name, states=[state]), limit=1).rows
                    example_cluster = example_rows[0].cluster if example_rows else ""
                    example_problem = example_rows[0].problem if example_rows else None
                    problem = example_problem or ScoreProblem("", "", STATES[state].help)
                    group = ReasonGroup(
                        scorer=scorer.name,
                        state=state,
                        stage=problem.stage,
                        reason=problem.reason,
                        clusters=remaining_cluster_count,
                        cluster=example_cluster,
                        at=problem.at or None,
                        message=problem.message,
                    )
                    groups.append(group)
        return sorted(groups, key=lambda group: (_STATE_ORDER.index(group.state), -group.clusters, group.scorer))

    def read_page(self, pair_filter: PairFilter, cursor: str | None = None, *, limit: int = PAGE_ROWS) -> TablePage:
        """Return at most `limit` matching pairs, worst first; from the start if the cursor is None or empty."""
        page = self.fleet_queries.pairs(pair_filter, limit=limit, cursor=cursor or None)
        return TablePage(self.read_rows(page.pairs), page.total, page.cursor)

    def read_rows(
        self,
        pairs: Iterable[PairRow],
        matches_score: Callable[[PairScore | None], bool] | None = None,
        budget: ScoreBudget | None = None,
    ) -> list[TableRow]:
        """Return the table rows of those `pairs` whose newest score matches, in the same order.

        Without `matches_score`, all pairs match. Otherwise pairs whose score exceeds the request's `budget` do not
        match.
        """
        budget = budget or ScoreBudget()
        rows_by_pair = {keys.pair(row.cluster, row.scorer): row for row in pairs}
        now, overrides = hubclock.now(), self.schedule.read_overrides()
        due_times = self.schedule.read_due_times(rows_by_pair)
        entries = {
            entry.pair: make_entry_view(entry, overrides, due_times.get(entry.pair), now)
            for entry in self.schedule.read_entries(rows_by_pair)
        }
        records = self.registry.read_scorers()
        table_rows = []
        for stored_state in self._pairs.read_states(map(keys.split_pair, rows_by_pair), budget.admits):
            score = stored_state.score
            is_omitted = (stored_state.cluster, stored_state.scorer) in budget.omitted_pairs
            if matches_score is None or (not is_omitted and matches_score(score)):
                row, entry = rows_by_pair[stored_state.pair], entries.get(stored_state.pair)
                table_row = _make_table_row(row, score, entry, records.get(row.scorer), now)
                if is_omitted:
                    is_expired = row.valid_until is not None and row.valid_until.timestamp() <= now
                    table_row = replace(table_row, is_omitted=True, expired=is_expired)
                table_rows.append(table_row)
        return table_rows

    def list_cluster_names(self) -> list[str]:
        """Return the names of all accepted clusters, sorted."""
        return sorted(str(name) for name in self.redis.hkeys(keys.CLUSTERS))

    def read_schedules(self, scorer: str) -> dict[str, EffectiveSchedule]:
        """Return the clusters on which a scorer runs, sorted, each with its effective schedule."""
        overrides, now = self.schedule.read_overrides(), hubclock.now()
        return {
            entry.cluster: apply_overrides(entry, overrides, now) for entry in self.schedule.read_entries_of(scorer)
        }

    def read_pair(self, cluster: str, scorer: str) -> tuple[TableRow, PairDetail]:
        """Return the table row and the details of one pair."""
        detail = self.fleet_queries.pair(cluster, scorer)
        return self.read_rows([detail])[0], detail

    def read_run_ids(self, rows: Sequence[TableRow]) -> list[list[str]]:
        """Return the known run ids of each row: those of its past cycles and that of its score."""
        past_runs = self._pairs.read_past_runs((row.cluster, row.scorer) for row in rows)
        return [[*runs, *([row.score.run] if row.score else [])] for row, runs in zip(rows, past_runs, strict=True)]

    def find_rows_of_run(self, run: str, pair_filter: PairFilter) -> list[PairRow]:
        """Return a list with the pair that this scheduled run belongs to, if the filter matches it; else an empty list.

        The run id contains the scheduled time. Therefore only the pairs that were due then are read.
        """
        # The run id has whole milliseconds, rounded down, so the scheduled time may be up to a millisecond (the
        # tolerance) later. Half of it keeps the difference clearly within the tolerance.
        scheduled_at = run_time(run) + SLOT_TOLERANCE / 2
        records, overrides = self.registry.read_scorers(), self.schedule.read_overrides()
        due_pairs = [
            (row.cluster, row.scorer)
            for row in iter_rows(self.fleet_queries.rows())
            if row.scorer in records
            and (pair_filter.scorers is None or row.scorer in pair_filter.scorers)
            and (pair_filter.clusters is None or row.cluster in pair_filter.clusters)
            and is_slot(
                row.pair,
                find_interval(row.scorer, row.cluster, records[row.scorer].interval, overrides),
                scheduled_at,
            )
        ]
        past_runs = self._pairs.read_past_runs(due_pairs)
        pairs_of_run = [pair for pair, runs in zip(due_pairs, past_runs, strict=True) if run in runs]
        pages = (
            self.fleet_queries.pairs(replace(pair_filter, scorer=scorer, clusters=[cluster]), limit=1)
            for cluster, scorer in pairs_of_run
        )
        return [row for page in pages for row in page.pairs]


def _make_table_row(
    row: PairRow, score: PairScore | None, entry: EntryView | None, record: ScorerRecord | None, now: float
) -> TableRow:
    """Return the table row of a pair, without those parts of its newest score that no table shows."""
    is_expired = score is not None and score.valid_until <= now
    table_row = TableRow(
        cluster=row.cluster,
        scorer=row.scorer,
        pair_row=row,
        state=STATES[row.state],
        problem=_find_score_problem(row, record, entry),
        score=None,
        expired=is_expired,
        entry=entry,
    )
    if score is None:
        return table_row
    shown_parts = {"items": score.items[:1], "results": score.results[:1], "held": {}}
    return replace(
        table_row,
        score=score.model_copy(update=shown_parts),
        values=() if is_expired else tuple(sorted((value for _, value in score.items), reverse=True)),
        held_count=len(score.held),
        held_value=next((held.value for held in score.held.values()), None),
    )


def _find_score_problem(row: PairRow, record: ScorerRecord | None, entry: EntryView | None) -> ScoreProblem | None:
    """Return why a pair has no score or an incomplete one; None if its score is complete."""
    problem, skips = row.failure, row.skips
    if row.state in (Verdict.OK, Verdict.EMPTY) and row.remark is not None:
        problem = row.remark
    elif row.state is Verdict.OK:
        return None
    elif row.state is Verdict.PAUSED:
        return ScoreProblem("", "paused", _describe_pause(entry) if entry else STATES[row.state].help)
    if problem is not None:
        return ScoreProblem(problem.stage, problem.reason, problem.message, problem.at.timestamp())
    if skips is not None:
        return ScoreProblem("", skips.reason, skips.message, skips.since.timestamp())
    if record is not None and record.problem:
        # The stored problem is `reason: message`.
        reason, _, message = record.problem.partition(": ")
        return ScoreProblem("", reason, message or reason)
    return ScoreProblem("", "", STATES[row.state].help)


def _describe_pause(entry: EntryView) -> str:
    """Return who paused a pair, until when and why."""
    end = f" until {entry.paused_until:%Y-%m-%d %H:%M} UTC" if entry.paused_until else ""
    pause = next((override for override in entry.overrides if override.target == entry.paused_source), None)
    if pause is None:
        return f"suspended by its DynamicScorer{end}, or its cluster or the configuration is gone"
    return f"paused by {pause.by or 'unknown'}{end}{': ' if pause.note else ''}{pause.note}"
