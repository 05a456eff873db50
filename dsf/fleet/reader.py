"""Builds the views of scores, scorers, schedule and past cycles. Read-only."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence

import redis

from dsf import keys
from dsf.api.score import has_expired
from dsf.errors import UnknownClusterError, UnknownScorerError
from dsf.fleet import changes
from dsf.fleet.model import FleetModel, PairFilter
from dsf.fleet.overviews import FleetOverview, ScorerPage
from dsf.fleet.rows import age_of, books_of, cycle_view, failure_view, hold_view, remark_view, skips_view, waiting
from dsf.fleet.schedule import entry_view
from dsf.fleet.verdict import Verdict, verdict
from dsf.fleet.views import HistoryList, ScheduleList, ScoreItem, ScoreList, ScoreResult, ScoreView
from dsf.store.pairs import Pairs, PairState
from dsf.store.registry import Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore

#: Most scores in one page, and their approximate total of bytes.
MAX_SCORES = 250
MAX_BYTES = 900_000


class FleetReader:
    """Scores, scorers and past cycles. Thread-safe.

    Methods raise redis.RedisError when Redis cannot be read, and UnknownScorerError or UnknownClusterError for an
    unregistered name.
    """

    def __init__(
        self, client: redis.Redis, clock: Callable[[], float] = time.time, model: FleetModel | None = None
    ) -> None:
        """`model` has the rows in memory; a new one by default."""
        self._redis = client
        self._model = model or FleetModel(client, clock)
        self._registry = Registry(client)
        self._pairs = Pairs(client)
        self._schedule = ScheduleStore(client)
        self._clock = clock

    def scores(
        self,
        cluster: str | None = None,
        scorer: str | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
    ) -> ScoreList:
        """The newest score of every pair of the schedule, or of one cluster's or one scorer's pairs.

        At most `limit` of them (None: all), sorted by cluster and scorer, after the pair `after`: `continue` of the
        previous answer.
        """
        self._check(cluster, scorer)
        pairs, total, following = self._page(cluster, scorer, limit, after)
        now = self._clock()
        views = [view for view, _ in self._views(pairs, now)]
        return ScoreList(at=now, scores=views, total=total, continue_=following)

    def score_page(
        self,
        cluster: str | None = None,
        scorer: str | None = None,
        *,
        states: Collection[Verdict] | None = None,
        limit: int = MAX_SCORES,
        after: str | None = None,
    ) -> ScoreList:
        """As `scores`, but below a megabyte: the page may end early, or items of a score are omitted.

        With `states` only those, worst first.
        """
        self._check(cluster, scorer)
        limit = min(limit, MAX_SCORES)
        if states is None:
            pairs, total, following = self._page(cluster, scorer, limit, after)
        else:
            wanted = PairFilter(scorer=scorer, clusters=None if cluster is None else [cluster], states=states)
            rows = self._model.pairs(wanted, limit=limit, cursor=after)
            pairs, total, following = [(row.cluster, row.scorer) for row in rows.pairs], rows.total, rows.cursor
        now = self._clock()
        views: list[ScoreView] = []
        size = 0
        for view, score_bytes in self._views(pairs, now):
            # About 600 bytes for all of a row but its items and results.
            size += 600 + 2 * score_bytes
            if views and size > MAX_BYTES and states is None:
                # The rest is for the next page; a cursor by state contains the place of a whole page.
                following = keys.pair(views[-1].cluster, views[-1].scorer)
                break
            views.append(_cut(view, size > MAX_BYTES))
        return ScoreList(at=now, scores=views, total=total, continue_=following)

    def worst_scores(self, scorer: str, limit: int) -> ScoreList:
        """The newest scores of a scorer, worst first."""
        return self.score_page(scorer=scorer, states=list(Verdict), limit=limit)

    def schedule(
        self,
        cluster: str | None = None,
        scorer: str | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
    ) -> ScheduleList:
        """Entries of the schedule with users' overrides; filters and pages as in `scores`."""
        self._check(cluster, scorer)
        pairs, total, following = self._page(cluster, scorer, limit, after)
        entries = self._schedule.entries(keys.pair(*pair) for pair in pairs)
        overrides = self._schedule.overrides()
        due = self._schedule.due_times(entry.pair for entry in entries)
        now = self._clock()
        views = [entry_view(entry, overrides, due.get(entry.pair), now) for entry in entries]
        return ScheduleList(at=now, entries=views, total=total, continue_=following)

    def summary(self) -> FleetOverview:
        """The whole fleet, with every scorer."""
        return self._model.fleet()

    def scorers(self, scorer: str | None = None) -> ScorerPage:
        """Every registered scorer by name, or one."""
        return self._model.scorer_page(scorer)

    def history(self, cluster: str, scorer: str, *, limit: int | None = None, after: str | None = None) -> HistoryList:
        """The newest cycles of one pair and its counters; both are empty if it never ran.

        At most `limit` cycles (None: all), after the run `after`.
        """
        self._check(cluster, scorer)
        cycles = self._pairs.history(cluster, scorer)
        earlier = cycles
        if after is not None:
            place = next((number for number, cycle in enumerate(cycles) if cycle.run == after), None)
            # This run is not kept any more: earlier runs have smaller ids.
            earlier = [cycle for cycle in cycles if cycle.run < after] if place is None else cycles[place + 1 :]
        shown = earlier[:limit]
        return HistoryList(
            cluster=cluster,
            scorer=scorer,
            books=books_of(self._pairs.state(cluster, scorer)),
            cycles=[cycle_view(cluster, scorer, cycle) for cycle in shown],
            total=len(cycles),
            cursor=shown[-1].run if len(shown) < len(earlier) else None,
        )

    def changes(
        self,
        scorer: str | None = None,
        cluster: str | None = None,
        *,
        since: float | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> changes.ChangeList:
        """Actions of users, newest first: see `dsf.fleet.changes.read`. A name is known while changes have it."""
        try:
            self._check(cluster, scorer)
        except (UnknownClusterError, UnknownScorerError):
            kept = changes.read(self._redis).changes
            self._check(
                None if any(cluster in change.clusters for change in kept) else cluster,
                None if any(scorer == change.scorer for change in kept) else scorer,
            )
        return changes.read(self._redis, limit=limit, cursor=after, scorer=scorer, cluster=cluster, since=since)

    def _page(
        self, cluster: str | None, scorer: str | None, limit: int | None, after: str | None
    ) -> tuple[list[tuple[str, str]], int, str | None]:
        """At most `limit` pairs (None: all), the total of all pages, and the next cursor."""
        rows = self._model.rows()
        pairs = sorted(
            (row.cluster, row.scorer)
            for name, own in rows.items()
            if scorer in (None, name)
            for row in (own.values() if cluster is None else [own[cluster]] if cluster in own else ())
        )
        start = 0 if after is None else bisect_right(pairs, keys.split_pair(after))
        shown = pairs[start:][:limit]
        has_more = bool(shown) and start + len(shown) < len(pairs)
        return shown, len(pairs), keys.pair(*shown[-1]) if has_more else None

    def _views(self, pairs: Sequence[tuple[str, str]], now: float) -> Iterator[tuple[ScoreView, int]]:
        """The newest score of each pair, and its bytes in Redis."""
        records, rows = self._registry.scorers(), self._model.rows()
        for state in self._pairs.states(pairs):
            row = rows.get(state.scorer, {}).get(state.cluster)
            is_paused = row is not None and row.state(now) is Verdict.PAUSED
            yield score_view(state, records, now, is_paused=is_paused), state.score_bytes

    def _check(self, cluster: str | None, scorer: str | None) -> None:
        if scorer is not None:
            self._registry.scorer(scorer)
        if cluster is not None:
            self._registry.cluster(cluster)


def score_view(state: PairState, records: dict[str, ScorerRecord], now: float, *, is_paused: bool = False) -> ScoreView:
    """View of one pair's newest score at `now` (unix seconds)."""
    verdict_now = verdict(state, now)
    score = state.score
    record = records.get(state.scorer)
    expired = score is not None and has_expired(state.valid_until, now)
    usable = None if expired else score
    known = record.score_name if record else None
    return ScoreView(
        cluster=state.cluster,
        scorer=state.scorer,
        score_name=known or (score.score_name if score else ""),
        run_id=score.run if score else None,
        at=score.at if score else None,
        valid_until=score.valid_until if score else None,
        state=Verdict.PAUSED if is_paused else verdict_now,
        expired=expired,
        fresh=usable is not None and verdict_now is not Verdict.FAILING,
        empty=verdict_now is Verdict.EMPTY,
        last_success=state.last_success,
        age_seconds=age_of(state.last_success, now),
        failing=state.failing or (state.expired if state.trouble is not None else 0),
        failure=failure_view(state),
        remark=remark_view(state),
        skips=skips_view(state, record),
        hold=hold_view(record),
        items=[
            ScoreItem(name=name, value=value, **waiting(usable, name, record.hold if record else None))
            for name, value in usable.items
        ]
        if usable
        else [],
        results=[ScoreResult(metric=labels, score=value) for labels, value in usable.results] if usable else [],
    )


def _cut(view: ScoreView, is_long: bool) -> ScoreView:
    if not is_long:
        return view
    return view.model_copy(update={"items": view.items[:50], "results": view.results[:50]})
