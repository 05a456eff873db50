"""Reads the data of the pages from `dsf.fleet` and the stores."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import redis

from dsf import keys
from dsf.fleet.model import FleetModel
from dsf.fleet.overviews import PairDetail, PairRow, ReasonGroup, ScorerOverview
from dsf.fleet.schedule import entry_view
from dsf.fleet.selection import PairFilter
from dsf.fleet.verdict import Verdict, verdict
from dsf.fleet.views import EntryView
from dsf.messages import run_time
from dsf.store.entries import TOLERANCE, Effective, effective, interval_in_force, is_slot, pause
from dsf.store.pairs import Pairs, PairScore, PairState
from dsf.store.registry import Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore
from dsf.web.states import RANK, STATES, State


@dataclass(frozen=True)
class Why:
    """Why a pair has no fresh score. `at` is unix seconds, 0 if unknown."""

    stage: str
    reason: str
    message: str
    at: float
    run: str = ""


@dataclass(frozen=True)
class TableRow:
    """One pair with the data of a table row."""

    cluster: str
    scorer: str
    state: State
    why: Why | None
    score: PairScore | None
    expired: bool
    entry: EntryView | None
    data: PairState

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
        self.model = FleetModel(client)

    def ping(self) -> None:
        """Check that Redis can be read; it refuses PING while it takes no writes."""
        self.redis.hlen(keys.CLUSTERS)

    def groups(self, scorers: Iterable[ScorerOverview]) -> list[ReasonGroup]:
        """Problems of scorers, worst first."""
        groups: list[ReasonGroup] = []
        wordless = 0
        for scorer in scorers:
            groups += scorer.reasons
            # Their pairs have no other reason than the state.
            for state in (Verdict.EXPIRED, Verdict.NEVER, Verdict.EMPTY, Verdict.PAUSED):
                # Those with a remark are in a group.
                grouped = sum(group.clusters for group in scorer.reasons if group.state is state)
                number = max(0, getattr(scorer.states, state.value) - grouped)
                # For each of them one pair is read.
                if number and wordless < 20:
                    wordless += 1
                    some = self.page(PairFilter(scorer=scorer.name, states=[state]), 1).rows
                    why = (some[0].why if some else None) or Why("", "", STATES[state.value].help, 0.0)
                    group = ReasonGroup(
                        scorer=scorer.name,
                        state=state,
                        stage=why.stage,
                        reason=why.reason,
                        clusters=number,
                        cluster=some[0].cluster if some else "",
                        at=why.at or None,
                        message=why.message,
                    )
                    groups.append(group)
        return sorted(groups, key=lambda group: (RANK[group.state.value], -group.clusters, group.scorer))

    def page(self, wanted: PairFilter, limit: int, cursor: str | None = None) -> Rows:
        """Matching pairs, worst first."""
        page = self.model.pairs(wanted, limit=limit, cursor=cursor)
        return Rows(self.rows(page.pairs), page.total, page.cursor)

    def rows(self, pairs: Iterable[PairRow]) -> list[TableRow]:
        """Rows of tables, in their order, each as its pair is now."""
        models = {(row.cluster, row.scorer): row for row in pairs}
        names = [keys.pair(*pair) for pair in models]
        now = time.time()
        entries = {(entry.cluster, entry.scorer): entry for entry in self.schedule.entries(names)}
        overrides, due = self.schedule.overrides(), self.schedule.due_times(names)
        records = self.registry.scorers()
        rows = []
        for data in self._pairs.states(models):
            pair = (data.cluster, data.scorer)
            entry, score = entries.get(pair), data.score
            view = entry_view(entry, overrides, due.get(keys.pair(*pair)), now) if entry is not None else None
            is_paused = entry is not None and pause(entry, overrides, now).paused
            state = STATES[verdict(data, now, is_paused=is_paused).value]
            why = _why(state, models[pair], records.get(pair[1]), view)
            expired = score is not None and score.valid_until <= now
            # Tables name items and no results: a score may have 10,000, and hundreds of rows are read at once.
            if score is not None:
                score = score.model_copy(update={"results": score.results[:1]})
            short = replace(data, books={"last_run": data.last_run})
            rows.append(TableRow(*pair, state, why, score, expired, view, short))
        return rows

    def cluster_names(self) -> list[str]:
        """All accepted clusters, sorted."""
        return sorted(str(name) for name in self.redis.hkeys(keys.CLUSTERS))

    def targets(self, scorer: str) -> dict[str, Effective]:
        """The clusters on which a scorer runs, sorted, and the schedule in force on each."""
        overrides, now = self.schedule.overrides(), time.time()
        return {entry.cluster: effective(entry, overrides, now) for entry in self.schedule.entries_of(scorer)}

    def pair(self, cluster: str, scorer: str) -> tuple[TableRow, PairDetail]:
        """One pair."""
        detail = self.model.pair(cluster, scorer)
        return self.rows([detail])[0], detail

    def runs(self, rows: Iterable[TableRow]) -> list[list[str]]:
        """The known run ids of each pair: past cycles and that of its score."""
        rows = list(rows)
        past = self._pairs.past_runs((row.cluster, row.scorer) for row in rows)
        return [
            [*runs, row.data.last_run, *([row.score.run] if row.score else [])]
            for row, runs in zip(rows, past, strict=True)
        ]

    def of_run(self, run: str, wanted: PairFilter) -> list[TableRow]:
        """The pair with this scheduled run: the id contains the time, at which few pairs are due."""
        at = run_time(run) + TOLERANCE / 2
        records, overrides = self.registry.scorers(), self.schedule.overrides()
        due = [
            (cluster, scorer)
            for cluster, scorer in self._pairs.names()
            if scorer in records
            and is_slot(
                keys.pair(cluster, scorer),
                interval_in_force(scorer, cluster, records[scorer].interval, overrides),
                at,
            )
        ]
        rows: list[TableRow] = []
        for (cluster, scorer), runs in zip(due, self._pairs.past_runs(due), strict=True):
            if (
                run in runs
                and (wanted.scorers is None or scorer in wanted.scorers)
                and (wanted.clusters is None or cluster in wanted.clusters)
            ):
                rows += self.page(replace(wanted, scorer=scorer, clusters=[cluster]), 1).rows
        return rows


def _why(state: State, model: PairRow, record: ScorerRecord | None, entry: EntryView | None) -> Why | None:
    """Why a pair has no score, or not all of it; None if it has."""
    if state.name in ("ok", "empty") and (remark := model.remark) is not None:
        return Why(remark.stage, remark.reason, remark.message, remark.at.timestamp(), remark.run_id)
    if state.name == "ok":
        return None
    if state.name == "paused":
        return Why("", "paused", _paused_by(entry) if entry else state.help, 0.0)
    failure, skips = model.failure, model.skips
    if failure is not None:
        return Why(failure.stage, failure.reason, failure.message, failure.at.timestamp(), failure.run_id)
    if skips is not None:
        return Why("", skips.reason, skips.message, skips.since.timestamp())
    if record is not None and record.problem:
        reason, _, text = record.problem.partition(": ")
        return Why("", reason, text or reason, 0.0)
    return Why("", "", state.help, 0.0)


def _paused_by(view: EntryView) -> str:
    """Who paused a pair and why, as a sentence."""
    until = f" until {view.paused_until:%Y-%m-%d %H:%M} UTC" if view.paused_until else ""
    by: Mapping[str, str] | None = None
    for override in view.overrides:
        if override.target == view.paused_source:
            by = {"name": override.by or "unknown", "note": f": {override.note}" if override.note else ""}
    if by is None:
        return f"suspended by its DynamicScorer{until}, or its cluster or the configuration is gone"
    return f"paused by {by['name']}{until}{by['note']}"
