"""Builds the views from Redis. Read-only."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import redis

from dsf import keys
from dsf.api.validity import has_expired
from dsf.errors import UnknownClusterError, UnknownScorerError
from dsf.fleet import changes
from dsf.fleet.model import FleetModel, PairFilter
from dsf.fleet.pages import Page, model_page
from dsf.fleet.places import judged
from dsf.fleet.rows import age_of, books_of, cycle_view, failure_view, read_at, remark_view, skips_view
from dsf.fleet.schedule import entry_view
from dsf.fleet.scorerviews import MAX_FAILURES, remark_order, scorer_views
from dsf.fleet.verdict import Verdict, verdict
from dsf.fleet.views import (
    ClusterCounts,
    FailureView,
    HistoryList,
    IdleClusters,
    RemarkView,
    ScheduleList,
    ScoreItem,
    ScoreList,
    ScoreResult,
    ScorerList,
    ScorerView,
    ScoreView,
)
from dsf.store.entries import interval_in_force
from dsf.store.model import VERSION
from dsf.store.notices import Notices
from dsf.store.pairs import Pairs, PairState
from dsf.store.registry import Registry, ScorerRecord
from dsf.store.schedule import Override, ScheduleStore
from dsf.store.skips import INACTIVE, PAUSED, SKIPS_THRESHOLD, Skips

#: Earlier names of counts, by state.
_COUNTED = {Verdict.OK: "succeeding", Verdict.NEVER: "waiting"}

#: Most scores in one page, and their approximate total of bytes.
MAX_SCORES = 250
MAX_BYTES = 900_000
#: Items and results shown per score if there is no room for all.
_FEW = 50
# Approximate bytes of the rest of a row.
_ROW_BYTES = 600


class FleetReader:
    """Scores, scorers and past cycles. Thread-safe.

    Methods raise redis.RedisError when Redis cannot be read, and UnknownScorerError or UnknownClusterError for an
    unregistered name.
    """

    def __init__(self, client: redis.Redis, clock: Callable[[], float] = time.time) -> None:
        self._redis = client
        self._model = FleetModel(client, clock)
        self._registry = Registry(client)
        self._pairs = Pairs(client)
        self._schedule = ScheduleStore(client)
        self._notices = Notices(client)
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
        records = self._registry.scorers()
        pairs, total, following = self._page(cluster, scorer, limit, after)
        now = self._clock()
        paused = self._paused(pairs, now)
        views = [
            score_view(state, records, now, is_paused=(state.cluster, state.scorer) in paused)
            for state in self._pairs.states(pairs)
        ]
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

        With `states` only those, worst first, from the read model.
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
        records = self._registry.scorers()
        paused = self._paused(pairs, now)
        views: list[ScoreView] = []
        size = 0
        for state in self._pairs.states(pairs):
            size += _ROW_BYTES + 2 * state.score_bytes
            if views and size > MAX_BYTES and states is None:
                # The rest is for the next page; a cursor by state contains the place of a whole page.
                following = keys.pair(views[-1].cluster, views[-1].scorer)
                break
            view = score_view(state, records, now, is_paused=(state.cluster, state.scorer) in paused)
            views.append(_cut(view, size > MAX_BYTES))
        return ScoreList(at=now, scores=views, total=total, continue_=following)

    def worst_scores(self, scorer: str, limit: int) -> ScoreList:
        """The newest scores of a scorer, worst first; sorted by cluster until results workers have built the model."""
        if self._has_model():
            return self.score_page(scorer=scorer, states=list(Verdict), limit=limit)
        return self.scores(scorer=scorer, limit=limit)

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

    def scorers(self, scorer: str | None = None, *, limit: int | None = None, after: str | None = None) -> ScorerList:
        """Every registered scorer by name, or one; at most `limit` of them, after the one named `after`."""
        self._check(None, scorer)
        every = sorted(self._registry.scorers().items())
        asked = [one for name, one in every if scorer in (None, name)]
        records = [one for one in asked if after is None or one.name > after][:limit]
        overrides = self._schedule.overrides()
        now = self._clock()
        if self._has_model():
            views = scorer_views(self._redis, records, overrides, now)
        else:
            by_scorer: defaultdict[str, list[PairState]] = defaultdict(list)
            shown = {one.name for one in records}
            for state in self._pairs.states(pair for pair in self._pairs_of(None, scorer) if pair[1] in shown):
                by_scorer[state.scorer].append(state)
            views = [scorer_view(record, by_scorer[record.name], overrides, now) for record in records]
        reads = self._notices.reads() if scorer is None else {scorer: self._notices.read(scorer)}
        views = [one.model_copy(update={"config_read": read_at(reads.get(one.name))}) for one in views]
        more = bool(records) and records[-1] is not asked[-1]
        return ScorerList(at=now, scorers=views, total=len(asked), cursor=records[-1].name if more else None)

    def history(self, cluster: str, scorer: str, *, limit: int | None = None, after: str | None = None) -> HistoryList:
        """The newest cycles of one pair and its counters; both are empty if it never ran.

        At most `limit` cycles (None: all), after the run `after`.
        """
        self._check(cluster, scorer)
        found = self._pairs.history(cluster, scorer)
        earlier = found
        if after is not None:
            place = next((number for number, one in enumerate(found) if one.run == after), None)
            # This run is not kept any more: earlier runs have smaller ids.
            earlier = [one for one in found if one.run < after] if place is None else found[place + 1 :]
        shown = earlier[:limit]
        return HistoryList(
            cluster=cluster,
            scorer=scorer,
            books=books_of(self._pairs.state(cluster, scorer)),
            cycles=[cycle_view(one) for one in shown],
            total=len(found),
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
                None if any(cluster in one.clusters for one in kept) else cluster,
                None if any(scorer == one.scorer for one in kept) else scorer,
            )
        return changes.read(self._redis, limit=limit, cursor=after, scorer=scorer, cluster=cluster, since=since)

    def _page(
        self, cluster: str | None, scorer: str | None, limit: int | None, after: str | None
    ) -> tuple[list[tuple[str, str]], int, str | None]:
        """At most `limit` pairs (None: all), the total of all pages, and the next cursor."""
        if limit is not None and self._has_model():
            return model_page(self._redis, cluster, scorer, limit, after)
        page = Page(list(self._pairs_of(cluster, scorer)), limit, after)
        return page.pairs, page.total, page.continue_

    def _paused(self, pairs: Iterable[tuple[str, str]], now: float) -> set[tuple[str, str]]:
        """The paused pairs; none until results workers have built the model."""
        by_scorer: defaultdict[str, list[str]] = defaultdict(list)
        for cluster, scorer in pairs:
            by_scorer[scorer].append(cluster)
        with self._redis.pipeline(transaction=False) as pipe:
            for scorer, clusters in by_scorer.items():
                pipe.zmscore(keys.model_states(scorer), clusters)
            answers = pipe.execute()
        return {
            (cluster, scorer)
            for (scorer, clusters), places in zip(by_scorer.items(), answers, strict=True)
            for cluster, place in zip(clusters, places, strict=True)
            if place is not None and judged(float(place), now) is Verdict.PAUSED
        }

    def _has_model(self) -> bool:
        """Whether results workers of this version have built the model; otherwise all pairs must be read."""
        return bool(self._redis.get(keys.MODEL_VERSION) == VERSION)

    def _check(self, cluster: str | None, scorer: str | None) -> None:
        if scorer is not None:
            self._registry.scorer(scorer)
        if cluster is not None:
            self._registry.cluster(cluster)

    def _pairs_of(self, cluster: str | None, scorer: str | None) -> Iterator[tuple[str, str]]:
        return (pair for pair in self._pairs.names() if cluster in (None, pair[0]) and scorer in (None, pair[1]))


def score_view(state: PairState, records: dict[str, ScorerRecord], now: float, *, is_paused: bool = False) -> ScoreView:
    """View of one pair's newest score at `now` (unix seconds)."""
    found = verdict(state, now)
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
        state=Verdict.PAUSED if is_paused else found,
        expired=expired,
        fresh=usable is not None and found is not Verdict.FAILING,
        empty=found is Verdict.EMPTY,
        last_success=state.last_success,
        age_seconds=age_of(state.last_success, now),
        failing=state.failing or (state.expired if state.trouble is not None else 0),
        failure=failure_view(state),
        remark=remark_view(state),
        skips=skips_view(state, record),
        items=[ScoreItem(name=name, value=value) for name, value in usable.items] if usable else [],
        results=[ScoreResult(metric=labels, score=value) for labels, value in usable.results] if usable else [],
    )


def _cut(view: ScoreView, is_long: bool) -> ScoreView:
    if not is_long:
        return view
    return view.model_copy(update={"items": view.items[:_FEW], "results": view.results[:_FEW]})


def scorer_view(
    record: ScorerRecord, states: list[PairState], overrides: Mapping[str, Override], now: float
) -> ScorerView:
    """State of one scorer on all its clusters at `now` (unix seconds); `overrides` by target."""
    successes = [state.last_success for state in states if state.last_success is not None]
    last_success = max(successes, default=None)
    failures = [failure for state in states if (failure := failure_view(state)) is not None]
    failures.sort(key=lambda failure: failure.at, reverse=True)
    return ScorerView(
        name=record.name,
        score_name=record.score_name,
        description=record.description,
        location=record.location,
        score_destination=record.destination,
        interval_seconds=record.interval,
        intervals_in_force=sorted(
            {interval_in_force(record.name, state.cluster, record.interval, overrides) for state in states}
        ),
        validity_seconds=record.validity,
        rate_limit=record.rate_limit,
        suspended=record.suspended,
        health_status=record.health,
        problem=record.problem,
        clusters=_cluster_counts(states, now),
        last_success=last_success,
        age_seconds=age_of(last_success, now),
        failures=failures[:MAX_FAILURES],
        remarks=_remarks(states, now),
        idle=_idle(record, states, now),
    )


def _cluster_counts(states: list[PairState], now: float) -> ClusterCounts:
    numbers: Counter[str] = Counter()
    for state in states:
        found = verdict(state, now)
        if found is Verdict.SKIPPED and state.last_success is not None and not has_expired(state.valid_until, now):
            # Only the current score counts here, not future ticks.
            found = Verdict.OK
        numbers[_COUNTED.get(found, found.value)] += 1
    return ClusterCounts(desired=len(states), **numbers)


def _remarks(states: list[PairState], now: float) -> list[RemarkView]:
    groups: defaultdict[tuple[Verdict, str], list[FailureView]] = defaultdict(list)
    for state in states:
        found, remark = verdict(state, now), remark_view(state)
        if remark is not None and found in (Verdict.EMPTY, Verdict.OK):
            groups[found, remark.reason].append(remark)
    rows = []
    for (judged_as, _), some in groups.items():
        newest = max(some, key=lambda one: one.at)
        rows.append(RemarkView(**newest.model_dump(), clusters=len(some), state=judged_as))
    return sorted(rows, key=remark_order)


def _idle(record: ScorerRecord, states: list[PairState], now: float) -> list[IdleClusters]:
    by_reason: defaultdict[str, list[Skips]] = defaultdict(list)
    for state in states:
        skips = state.skips
        if skips is None or (skips.reason in (PAUSED, INACTIVE) and record.suspended):
            continue
        if skips.ticks >= SKIPS_THRESHOLD or has_expired(state.valid_until, now):
            by_reason[skips.reason].append(skips)
    found = [
        IdleClusters(**_said(min(some, key=lambda skips: (skips.since, skips.cluster)), record), clusters=len(some))
        for some in by_reason.values()
    ]
    return sorted(found, key=lambda one: (-one.clusters, one.reason))


def _said(skips: Skips, record: ScorerRecord | None) -> dict[str, Any]:
    return {**asdict(skips), "message": skips.why(record.rate_limit, record.problem) if record else skips.why(None)}
