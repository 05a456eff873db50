"""Questions about the fleet, answered from the rows in memory: the whole fleet, a scorer, a cluster, pages of pairs,
one pair, and their scores, schedule and past cycles. A page of pairs has at most 200 rows.
"""

from __future__ import annotations

import fnmatch
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from heapq import nlargest, nsmallest
from typing import Final

import redis

from dsf import keys
from dsf.errors import UnknownNameError
from dsf.fleet.changes import ChangeList
from dsf.fleet.changes import read as read_changes
from dsf.fleet.inputs import list_inputs
from dsf.fleet.pairviews import books_of, cycle_view, entry_view, pair_detail, pair_row, read_at, score_view
from dsf.fleet.path import Interruption, path_problems
from dsf.fleet.rowgroups import (
    Groups,
    badness,
    by_cluster,
    cluster_overview,
    condition_views,
    grouped,
    lag_histogram,
    scorer_overview,
    spread,
    state_counts,
    summed,
    unready_scorer,
    worst,
)
from dsf.fleet.selection import MAX_ROWS, Cursor, PairFilter, at_most, cluster_cursor
from dsf.fleet.snapshot import RANKS, Rows, Snapshot, SnapshotRow
from dsf.fleet.verdict import Verdict
from dsf.fleet.views import (
    Changes,
    ClusterDetail,
    ClusterOverview,
    ClusterPage,
    ClusterValue,
    FleetOverview,
    HistoryList,
    PairDetail,
    PairPage,
    PairRow,
    PathProblem,
    ScheduleList,
    ScoreList,
    ScorerDetail,
    ScorerOverview,
    ScorerPage,
    ScoreView,
    StateCounts,
    UnreadyScorer,
    UpstreamScore,
)
from dsf.process import hubclock
from dsf.store.agents import Agents, key_id
from dsf.store.notices import ConfigRead, Notices, ScorerNotice
from dsf.store.pairs import Pairs
from dsf.store.registry import Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore

#: Most scores of the original project's agent in a response.
_MAX_UPSTREAM_SCORES: Final = 100


class FleetQueries:
    """Answers from a snapshot of rows. Thread-safe.

    Methods raise redis.RedisError when Redis cannot be read, UnknownScorerError or UnknownClusterError for an
    unregistered name, and QueryError or CursorError for an invalid query.
    """

    def __init__(self, client: redis.Redis, clock: Callable[[], float] = hubclock.now) -> None:
        self._redis = client
        self._registry = Registry(client)
        self._pairs = Pairs(client)
        self._schedule = ScheduleStore(client)
        self._notices = Notices(client)
        self._snapshot = Snapshot(client)
        self._kept: dict[str, Groups] = {}
        self._clock = clock

    def rows(self) -> Rows:
        """Return the rows of all pairs by scorer and cluster."""
        return self._snapshot.read()[0]

    def path_problems(self) -> list[Interruption]:
        """Why scores do not arrive or are not written, worst first."""
        return path_problems(self._redis, self.rows(), self._clock())

    def summary(self) -> FleetOverview:
        """Return the whole fleet, with every scorer."""
        now = self._clock()
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.hlen(keys.CLUSTERS)
            # A pair is overdue some seconds after its due time.
            pipe.zcount(keys.DUE, "-inf", now - 5.0)
            pipe.hgetall(keys.BEAT_STATS)
            clusters, overdue, stats = pipe.execute()
        # First: what changes meanwhile is then reported twice rather than never.
        _, sequence = self._snapshot.read()
        notices = self._notices.scorers()
        scorers = self._overviews(self._registry.scorers(), self._groups(now), notices, self._notices.reads(), now)
        scorers.sort(key=lambda overview: (*(-number for number in worst(overview.states)), overview.name))
        overview_names = {overview.name for overview in scorers}
        unready = [unready_scorer(notice) for name, notice in sorted(notices.items()) if name not in overview_names]
        states = summed(scorer.states for scorer in scorers)
        return FleetOverview(
            at=now,
            sequence=sequence,
            clusters=clusters,
            pairs=states.total,
            states=states,
            overdue=overdue,
            problems=[PathProblem(stage=stage, message=message) for stage, message in self.path_problems()],
            upstream_scores=self._upstream_scores(),
            lags=lag_histogram(stats, "lag:"),
            scorers=scorers,
            scorers_total=len(scorers),
            unready=unready,
            unready_total=len(unready),
        )

    def scorers(self, scorer: str | None = None, *, limit: int | None = None, after: str | None = None) -> ScorerPage:
        """Return every registered scorer by name, or one.

        At most `limit` of them (None: all), after the one named `after`.
        """
        now = self._clock()
        candidates = self._registry.scorers() if scorer is None else {scorer: self._registry.scorer(scorer)}
        remaining_names = [name for name in sorted(candidates) if after is None or name > after]
        page_names = remaining_names[:limit]
        records = {name: candidates[name] for name in page_names}
        return ScorerPage(
            at=now,
            total=len(candidates),
            scorers=self._overviews(records, self._groups(now), self._notices.scorers(), self._notices.reads(), now),
            cursor=page_names[-1] if len(page_names) < len(remaining_names) else None,
        )

    def scorer(self, name: str) -> ScorerDetail:
        """One scorer."""
        record = self._registry.scorer(name)
        now = self._clock()
        groups, read = self._groups(now), self._notices.read(name)
        [overview] = self._overviews({name: record}, groups, {}, {name: read} if read is not None else {}, now)
        scorer_groups = groups.get(name)
        values = [
            ClusterValue(cluster=row.cluster, value=row.value)
            for row in (scorer_groups.states.get(Verdict.OK, ()) if scorer_groups else ())
            if row.value is not None
        ]
        fields = [f"{name}:{bound}" for bound in (*keys.LAG_BOUNDS, "+Inf")]
        lags = dict(zip(fields, self._redis.hmget(keys.BEAT_LAGS, fields), strict=True))
        overview_fields = ScorerOverview.model_fields.keys() - {"conditions"}
        return ScorerDetail(
            **{field: getattr(overview, field) for field in overview_fields},
            values=spread([entry.value for entry in values], None),
            top=nlargest(10, values, key=lambda entry: (entry.value, entry.cluster)),
            bottom=nsmallest(10, values, key=lambda entry: (entry.value, entry.cluster)),
            lags=lag_histogram(lags, f"{name}:"),
            conditions=condition_views(self._notices.scorer(name)),
        )

    def clusters(
        self,
        *,
        limit: int = MAX_ROWS,
        cursor: str | None = None,
        names: Collection[str] | None = None,
        paired: bool = False,
    ) -> ClusterPage:
        """Accepted clusters, worst first, each with the state of its pairs; `names`: only these, `paired`: only those
        with pairs."""
        limit = at_most(limit)
        now = self._clock()
        cluster_names = {str(name) for name in self._redis.hkeys(keys.CLUSTERS)}
        if names is not None:
            cluster_names &= set(names)
        states = by_cluster(self._groups(now))
        if paired:
            cluster_names &= states.keys()
        order = sorted((-badness(states.get(name, {}).values()), name) for name in cluster_names)
        if cursor is not None:
            after = cluster_cursor(cursor)
            order = [place for place in order if place > after]
        page_names = [name for _, name in order[:limit]]
        next_cursor = None
        if len(order) > limit:
            number, name = order[limit - 1]
            next_cursor = f"{number!r}/{name}"
        return ClusterPage(
            at=now,
            total=len(cluster_names),
            cursor=next_cursor,
            clusters=[cluster_overview(name, states.get(name, {})) for name in page_names],
        )

    def cluster_states(self) -> dict[str, StateCounts]:
        """Return the states of the pairs of each cluster."""
        states = by_cluster(self._groups(self._clock()))
        return {name: state_counts(verdicts.values()) for name, verdicts in states.items()}

    def labels(self) -> dict[str, dict[str, str]]:
        """Return the labels of each cluster, without those of addons."""
        return {name: notice.labels for name, notice in self._notices.clusters().items()}

    def clusters_like(self, pattern: str) -> set[str] | None:
        """Accepted clusters that match a pattern (`*`, `?`); None for all of them. Raises UnknownClusterError for an
        invalid pattern.
        """
        if pattern == "*":
            return None
        if not any(sign in pattern for sign in "*?["):
            return {self._registry.cluster(pattern).name}
        return set(fnmatch.filter((str(name) for name in self._redis.hkeys(keys.CLUSTERS)), pattern))

    def cluster(self, name: str) -> ClusterDetail:
        """One cluster."""
        record = self._registry.cluster(name)
        now = self._clock()
        rows = [row for scorer_rows in self.rows().values() if (row := scorer_rows.get(name)) is not None]
        overview = cluster_overview(name, {row.scorer: row.state(now) for row in rows})
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.llen(keys.spoke_queue(name))
            pipe.exists(*keys.mail_slots(name))
            pipe.hget(keys.KEYS_USED, name)
            queue, mail, used_key = pipe.execute()
        agent = Agents(self._redis).one(name)
        notice = self._notices.cluster(name)
        return ClusterDetail(
            **{field: getattr(overview, field) for field in ClusterOverview.model_fields},
            agent_version=agent.version if agent else "",
            agent_problem=Agents(self._redis).problem(record),
            problem=notice.problem if notice else "",
            last_seen=max((row.last_success for row in rows if row.last_success is not None), default=None),
            queue=queue,
            mail=mail,
            key_ids=list(record.key_ids),
            key_since=record.key_since or None,
            used_key_id=key_id(name, used_key),
            labels=notice.labels if notice else {},
            absent=notice.absent if notice else {},
        )

    def pairs(
        self, pair_filter: PairFilter | None = None, *, limit: int = MAX_ROWS, cursor: str | None = None
    ) -> PairPage:
        """Pairs that match a filter, worst first; at most `limit`, and never more than 200."""
        pair_filter = pair_filter or PairFilter()
        limit = at_most(limit)
        now = self._clock()
        after = Cursor.read(cursor) if cursor is not None else None
        total, rows = 0, list[tuple[Cursor, SnapshotRow]]()
        selected_rows = [pair_filter.chosen(groups, now) for groups in self._asked(pair_filter, now)]
        for rank, state in enumerate(RANKS):
            state_rows = [row for rows_by_state in selected_rows for row in rows_by_state.get(state, ())]
            total += len(state_rows)
            if len(rows) <= limit and (after is None or rank >= after.rank):
                # States are worst first: places are needed only until the page is full.
                places = [(Cursor(rank, row.place(state, now), row.scorer, row.cluster), row) for row in state_rows]
                remaining_places = places if after is None else [place for place in places if place[0] > after]
                rows += nsmallest(limit + 1 - len(rows), remaining_places)
        cursor = str(rows[limit - 1][0]) if len(rows) > limit else None
        return PairPage(at=now, total=total, cursor=cursor, pairs=self._table([at for at, _ in rows[:limit]], now))

    def reasons(self, scorers: Collection[str]) -> set[str]:
        """Return all reasons for missing new scores of these scorers."""
        scorer_groups = self._asked(PairFilter(scorers=scorers), self._clock())
        return {why.reason for groups in scorer_groups for _, _, why in groups.reasons}

    def pair(self, cluster: str, scorer: str) -> PairDetail:
        """Return a pair with its newest cycles; counters are zero if it never ran."""
        record = self._registry.scorer(scorer)
        about = self._registry.cluster(cluster)
        notice = self._notices.cluster(cluster)
        name = keys.pair(cluster, scorer)
        now = self._clock()
        return pair_detail(
            self._pairs.state(cluster, scorer),
            record=record,
            entry=self._schedule.entry(name),
            overrides=self._schedule.overrides_of(scorer, [cluster]),
            due=self._schedule.due_times([name]).get(name),
            history=self._pairs.history(cluster, scorer),
            now=now,
            cluster_problem=(notice.problem if notice else "") or Agents(self._redis).problem(about),
            inputs=list_inputs(self._redis, cluster, record, now),
        )

    def updates(self, since: int, limit: int = 5000) -> Changes:
        """Pairs that changed after this sequence number; the newest number is `FleetOverview.sequence`."""
        with self._redis.pipeline(transaction=False) as pipe:
            # First: a concurrent change is then reported twice rather than never.
            pipe.get(keys.SEQUENCE)
            pipe.zrange(keys.CHANGED, f"({since}", "+inf", byscore=True, offset=0, num=limit, withscores=True)
            sequence, rows = pipe.execute()
        has_more = len(rows) >= limit
        newest = int(rows[-1][1]) if has_more else int(sequence or 0)
        return Changes(sequence=newest, pairs=[keys.split_pair(str(pair)) for pair, _ in rows], more=has_more)

    def scores(
        self,
        cluster: str | None = None,
        scorer: str | None = None,
        *,
        states: Collection[Verdict] | None = None,
        limit: int | None = None,
        after: str | None = None,
        most_bytes: float = math.inf,
    ) -> ScoreList:
        """Return the newest score of every pair of the schedule, or of one cluster's or one scorer's pairs.

        At most `limit` of them (None: all), sorted by cluster and scorer; with `states` only those, worst first, and at
        most 200. `after` is `continue` of the previous answer. Beyond about `most_bytes` the page ends early, or items
        of a score are omitted.
        """
        self._check(cluster, scorer)
        if states is None:
            pairs, total, next_cursor = self._page(cluster, scorer, limit, after)
        else:
            pair_filter = PairFilter(scorer=scorer, clusters=None if cluster is None else [cluster], states=states)
            rows = self.pairs(pair_filter, limit=limit or MAX_ROWS, cursor=after)
            pairs, total, next_cursor = [(row.cluster, row.scorer) for row in rows.pairs], rows.total, rows.cursor
        now = self._clock()
        views: list[ScoreView] = []
        size = 0
        for view, score_bytes in self._views(pairs, now):
            # About 600 bytes for all of a row but its items and results.
            size += 600 + 2 * score_bytes
            if views and size > most_bytes and states is None:
                # The rest is for the next page; a cursor by state contains the place of a whole page.
                next_cursor = keys.pair(views[-1].cluster, views[-1].scorer)
                break
            views.append(_cut(view) if size > most_bytes else view)
        upstream_scores = self._upstream_scores(cluster, scorer) if after is None else []
        return ScoreList(at=now, scores=views, upstream_scores=upstream_scores, total=total, continue_=next_cursor)

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
        pairs, total, next_cursor = self._page(cluster, scorer, limit, after)
        entries = self._schedule.entries(keys.pair(*pair) for pair in pairs)
        overrides = self._schedule.overrides()
        due = self._schedule.due_times(entry.pair for entry in entries)
        now = self._clock()
        views = [entry_view(entry, overrides, due.get(entry.pair), now) for entry in entries]
        return ScheduleList(at=now, entries=views, total=total, continue_=next_cursor)

    def history(self, cluster: str, scorer: str, *, limit: int | None = None, after: str | None = None) -> HistoryList:
        """Return the newest cycles of one pair and its counters; both are empty if it never ran.

        At most `limit` cycles (None: all), after the run `after`.
        """
        self._check(cluster, scorer)
        cycles = self._pairs.history(cluster, scorer)
        earlier = cycles
        if after is not None:
            place = next((number for number, cycle in enumerate(cycles) if cycle.run == after), None)
            # This run is not kept any more: earlier runs have smaller ids.
            earlier = [cycle for cycle in cycles if cycle.run < after] if place is None else cycles[place + 1 :]
        page = earlier[:limit]
        return HistoryList(
            cluster=cluster,
            scorer=scorer,
            books=books_of(self._pairs.state(cluster, scorer)),
            cycles=[cycle_view(cluster, scorer, cycle) for cycle in page],
            total=len(cycles),
            cursor=page[-1].run if len(page) < len(earlier) else None,
        )

    def changes(
        self,
        scorer: str | None = None,
        cluster: str | None = None,
        *,
        since: float | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> ChangeList:
        """Actions of users, newest first: see `dsf.fleet.changes.read`. A name is known while changes have it."""
        try:
            self._check(cluster, scorer)
        except UnknownNameError:
            recorded_changes = read_changes(self._redis).changes
            self._check(
                None if any(cluster in change.clusters for change in recorded_changes) else cluster,
                None if any(scorer == change.scorer for change in recorded_changes) else scorer,
            )
        return read_changes(self._redis, limit=limit, cursor=after, scorer=scorer, cluster=cluster, since=since)

    def unready(self, name: str) -> UnreadyScorer | None:
        """Return a DynamicScorer that could not run yet; None for others."""
        notice = self._notices.scorer(name)
        return unready_scorer(notice) if notice is not None else None

    # --- parts -------------------------------------------------------------------------------------------------------

    def _page(
        self, cluster: str | None, scorer: str | None, limit: int | None, after: str | None
    ) -> tuple[list[tuple[str, str]], int, str | None]:
        """At most `limit` pairs (None: all), the total of all pages, and the next cursor."""
        rows = self.rows()
        pairs = sorted(
            (row.cluster, row.scorer)
            for name, scorer_rows in rows.items()
            if scorer in (None, name)
            for row in (
                scorer_rows.values() if cluster is None else [scorer_rows[cluster]] if cluster in scorer_rows else ()
            )
        )
        start = 0 if after is None else bisect_right(pairs, keys.split_pair(after))
        page = pairs[start:][:limit]
        has_more = bool(page) and start + len(page) < len(pairs)
        return page, len(pairs), keys.pair(*page[-1]) if has_more else None

    def _upstream_scores(self, cluster: str | None = None, scorer: str | None = None) -> list[UpstreamScore]:
        """The first scores of the original project's agent that are still used, also of scorers that cannot run."""
        scores: list[UpstreamScore] = []
        for pair, cause in self._pairs.unwritten().items():
            pair_cluster, pair_scorer = keys.split_pair(pair)
            if cause.is_upstreams and cluster in (None, pair_cluster) and scorer in (None, pair_scorer):
                view = UpstreamScore(cluster=pair_cluster, scorer=pair_scorer, since=cause.since, message=cause.message)
                scores.append(view)
        return scores[:_MAX_UPSTREAM_SCORES]

    def _views(self, pairs: Sequence[tuple[str, str]], now: float) -> Iterator[tuple[ScoreView, int]]:
        """The newest score of each pair, and its bytes in Redis."""
        records, rows = self._registry.scorers(), self.rows()
        for state in self._pairs.states(pairs):
            row = rows.get(state.scorer, {}).get(state.cluster)
            is_paused = row is not None and row.state(now) is Verdict.PAUSED
            yield score_view(state, records, now, is_paused=is_paused), state.score_bytes

    def _check(self, cluster: str | None, scorer: str | None) -> None:
        if scorer is not None:
            self._registry.scorer(scorer)
        if cluster is not None:
            self._registry.cluster(cluster)

    def _overviews(
        self,
        records: Mapping[str, ScorerRecord],
        groups: Mapping[str, Groups],
        notices: Mapping[str, ScorerNotice],
        reads: Mapping[str, ConfigRead],
        now: float,
    ) -> list[ScorerOverview]:
        overrides = self._schedule.overrides()
        return [
            scorer_overview(
                record,
                groups.get(name) or Groups({}, now),
                overrides,
                now,
                conditions=condition_views(notices.get(name), unmet=True),
                config_read=read_at(reads.get(name)),
            )
            for name, record in records.items()
        ]

    def _groups(self, now: float) -> dict[str, Groups]:
        """Return the rows by scorer and state at `now` (unix seconds)."""
        self._kept = groups = grouped(self.rows(), now, self._kept)
        return groups

    def _asked(self, pair_filter: PairFilter, now: float) -> Iterator[Groups]:
        """The rows of the wanted scorers. Raises UnknownScorerError."""
        scorer = self._registry.scorer(pair_filter.scorer).name if pair_filter.scorer is not None else None
        for name, groups in sorted(self._groups(now).items()):
            if scorer in (None, name) and (pair_filter.scorers is None or name in pair_filter.scorers):
                yield groups

    def _table(self, places: Sequence[Cursor], now: float) -> list[PairRow]:
        names = [(place.cluster, place.scorer) for place in places]
        records = self._registry.scorers()
        due = self._schedule.due_times(keys.pair(*name) for name in names)
        return [
            pair_row(state, RANKS[place.rank], records.get(place.scorer), due.get(state.pair), now)
            for place, state in zip(places, self._pairs.rows(names), strict=True)
        ]


def _cut(view: ScoreView) -> ScoreView:
    return view.model_copy(update={"items": view.items[:50], "results": view.results[:50]})
