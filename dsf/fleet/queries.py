"""Queries of the fleet, which read the rows in memory and Redis.

The queries return the whole fleet, a scorer, a cluster, pages of pairs, one pair, scores, the schedule, or past cycles.
A page of pairs has at most 200 rows.
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
from dsf.fleet.changes import ChangeList, read_changes
from dsf.fleet.inputs import list_inputs
from dsf.fleet.pairviews import (
    find_config_read_time,
    make_books_view,
    make_cycle_view,
    make_entry_view,
    make_pair_detail,
    make_pair_row,
    make_score_view,
)
from dsf.fleet.path import Interruption, find_path_problems
from dsf.fleet.rowgroups import (
    RowGroups,
    compute_badness,
    compute_severity,
    compute_spread,
    count_states,
    group_rows,
    group_states_by_cluster,
    make_cluster_overview,
    make_condition_views,
    make_lag_histogram,
    make_scorer_overview,
    make_unready_scorer,
    sum_states,
)
from dsf.fleet.selection import MAX_ROWS, Cursor, PairFilter, check_page_size, parse_cluster_cursor
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
from dsf.store.agents import Agents, parse_key_id
from dsf.store.notices import ConfigRead, Notices, ScorerNotice
from dsf.store.pairs import Pairs
from dsf.store.registry import Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore

#: Maximum number of scores of the original project's agent in a response.
_MAX_UPSTREAM_SCORES: Final = 100
#: Number of highest scores, and of lowest scores, in the details of a scorer.
_MAX_EXTREMES: Final = 10
#: Maximum number of items, and of results, of a score that exceeds the size limit of its page.
_MAX_ITEMS_IN_LARGE_SCORE: Final = 50
#: Seconds after its due time from which a pair is overdue.
_OVERDUE_SECONDS: Final = 5.0
#: Approximate bytes of a score in JSON, without its items and results.
_BYTES_PER_SCORE: Final = 600


class FleetQueries:
    """Queries of the fleet on a snapshot of rows. Thread-safe.

    Methods raise redis.RedisError if Redis cannot be read, UnknownScorerError or UnknownClusterError for an
    unregistered name, and QueryError or CursorError for an invalid query.
    """

    def __init__(self, client: redis.Redis, clock: Callable[[], float] = hubclock.now) -> None:
        self._redis = client
        self._registry = Registry(client)
        self._pairs = Pairs(client)
        self._schedule = ScheduleStore(client)
        self._notices = Notices(client)
        self._snapshot = Snapshot(client)
        self._cached_groups: dict[str, RowGroups] = {}
        self._clock = clock

    def rows(self) -> Rows:
        """Return the rows of all pairs by scorer and cluster."""
        return self._snapshot.read()[0]

    def find_path_problems(self) -> list[Interruption]:
        """Return the reasons why scores do not arrive or are not written, worst first."""
        return find_path_problems(self._redis, self.rows(), self._clock())

    def summary(self) -> FleetOverview:
        """Return the overview of the whole fleet, with all scorers."""
        now = self._clock()
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.hlen(keys.CLUSTERS)
            pipe.zcount(keys.DUE, "-inf", now - _OVERDUE_SECONDS)
            pipe.hgetall(keys.BEAT_STATS)
            clusters, overdue_count, stats = pipe.execute()
        # Read the sequence number before the rows, so that a concurrent change is reported twice instead of never.
        _, sequence = self._snapshot.read()
        notices = self._notices.read_scorers()
        scorers = self._make_overviews(
            self._registry.read_scorers(), self._group_rows(now), notices, self._notices.read_config_reads(), now
        )
        scorers.sort(key=lambda overview: (*(-number for number in compute_severity(overview.states)), overview.name))
        overview_names = {overview.name for overview in scorers}
        unready_scorers = [
            make_unready_scorer(notice) for name, notice in sorted(notices.items()) if name not in overview_names
        ]
        states = sum_states(scorer.states for scorer in scorers)
        return FleetOverview(
            at=now,
            sequence=sequence,
            clusters=clusters,
            pairs=states.total,
            states=states,
            overdue=overdue_count,
            problems=[PathProblem(stage=stage, message=message) for stage, message in self.find_path_problems()],
            upstream_scores=self._read_upstream_scores(),
            lags=make_lag_histogram(stats, "lag:"),
            scorers=scorers,
            scorers_total=len(scorers),
            unready=unready_scorers,
            unready_total=len(unready_scorers),
        )

    def scorers(self, scorer: str | None = None, *, limit: int | None = None, after: str | None = None) -> ScorerPage:
        """Return the registered scorers sorted by name, or only the named scorer.

        Returns at most `limit` scorers (None: all), starting after the name `after`.
        """
        now = self._clock()
        candidates = self._registry.read_scorers() if scorer is None else {scorer: self._registry.read_scorer(scorer)}
        remaining_names = [name for name in sorted(candidates) if after is None or name > after]
        page_names = remaining_names[:limit]
        records = {name: candidates[name] for name in page_names}
        return ScorerPage(
            at=now,
            total=len(candidates),
            scorers=self._make_overviews(
                records, self._group_rows(now), self._notices.read_scorers(), self._notices.read_config_reads(), now
            ),
            cursor=page_names[-1] if len(page_names) < len(remaining_names) else None,
        )

    def scorer(self, name: str) -> ScorerDetail:
        """Return the details of a registered scorer, with its highest and lowest scores."""
        record = self._registry.read_scorer(name)
        now = self._clock()
        groups, config_read = self._group_rows(now), self._notices.read_config_read(name)
        config_reads = {name: config_read} if config_read is not None else {}
        [overview] = self._make_overviews({name: record}, groups, {}, config_reads, now)
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
            values=compute_spread([entry.value for entry in values], None),
            top=nlargest(_MAX_EXTREMES, values, key=lambda entry: (entry.value, entry.cluster)),
            bottom=nsmallest(_MAX_EXTREMES, values, key=lambda entry: (entry.value, entry.cluster)),
            lags=make_lag_histogram(lags, f"{name}:"),
            conditions=make_condition_views(self._notices.read_scorer(name)),
        )

    def clusters(
        self,
        *,
        limit: int = MAX_ROWS,
        cursor: str | None = None,
        names: Collection[str] | None = None,
        has_pairs: bool = False,
    ) -> ClusterPage:
        """Return the accepted clusters, worst first, each with the states of its pairs.

        Returns at most `limit` clusters, starting after `cursor`. `names` restricts the clusters to these names, and
        `has_pairs` to clusters with pairs.
        """
        limit = check_page_size(limit)
        now = self._clock()
        cluster_names = {str(name) for name in self._redis.hkeys(keys.CLUSTERS)}
        if names is not None:
            cluster_names &= set(names)
        states = group_states_by_cluster(self._group_rows(now))
        if has_pairs:
            cluster_names &= states.keys()
        order = sorted((-compute_badness(states.get(name, {}).values()), name) for name in cluster_names)
        if cursor is not None:
            last_position = parse_cluster_cursor(cursor)
            order = [position for position in order if position > last_position]
        page_names = [name for _, name in order[:limit]]
        next_cursor = None
        if len(order) > limit:
            negative_badness, name = order[limit - 1]
            next_cursor = f"{negative_badness!r}/{name}"
        return ClusterPage(
            at=now,
            total=len(cluster_names),
            cursor=next_cursor,
            clusters=[make_cluster_overview(name, states.get(name, {})) for name in page_names],
        )

    def cluster_states(self) -> dict[str, StateCounts]:
        """Return the number of pairs in each state, by cluster."""
        states = group_states_by_cluster(self._group_rows(self._clock()))
        return {name: count_states(verdicts.values()) for name, verdicts in states.items()}

    def labels(self) -> dict[str, dict[str, str]]:
        """Return the labels of each cluster, without the labels of addons."""
        return {name: notice.labels for name, notice in self._notices.read_clusters().items()}

    def match_clusters(self, pattern: str) -> set[str] | None:
        """Return the accepted clusters that match a shell pattern (`*`, `?`, `[`), or None for `*`.

        A pattern without wildcards is a name. Raises UnknownClusterError if no cluster with this name is registered.
        """
        if pattern == "*":
            return None
        if not any(wildcard in pattern for wildcard in "*?["):
            return {self._registry.read_cluster(pattern).name}
        return set(fnmatch.filter((str(name) for name in self._redis.hkeys(keys.CLUSTERS)), pattern))

    def cluster(self, name: str) -> ClusterDetail:
        """Return the details of an accepted cluster: its agent, queue, mailbox, credentials, and states of pairs."""
        record = self._registry.read_cluster(name)
        now = self._clock()
        rows = [row for scorer_rows in self.rows().values() if (row := scorer_rows.get(name)) is not None]
        overview = make_cluster_overview(name, {row.scorer: row.find_state(now) for row in rows})
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.llen(keys.spoke_queue(name))
            pipe.exists(*keys.mail_slots(name))
            pipe.hget(keys.KEYS_USED, name)
            queue, mail, used_key = pipe.execute()
        agent = Agents(self._redis).read_agent(name)
        notice = self._notices.read_cluster(name)
        return ClusterDetail(
            **{field: getattr(overview, field) for field in ClusterOverview.model_fields},
            agent_version=agent.version if agent else "",
            agent_problem=Agents(self._redis).find_problem(record),
            problem=notice.problem if notice else "",
            last_seen=max((row.last_success for row in rows if row.last_success is not None), default=None),
            queue=queue,
            mail=mail,
            key_ids=list(record.key_ids),
            key_since=record.key_since or None,
            used_key_id=parse_key_id(name, used_key),
            labels=notice.labels if notice else {},
            absent=notice.absent if notice else {},
        )

    def pairs(
        self, pair_filter: PairFilter | None = None, *, limit: int = MAX_ROWS, cursor: str | None = None
    ) -> PairPage:
        """Return the pairs that match a filter, worst first, starting after `cursor`.

        A page has at most `limit` pairs, and never more than 200.
        """
        pair_filter = pair_filter or PairFilter()
        limit = check_page_size(limit)
        now = self._clock()
        last_position = Cursor.parse(cursor) if cursor is not None else None
        total, rows = 0, list[tuple[Cursor, SnapshotRow]]()
        matching_rows = [
            pair_filter.select_rows(groups, now) for groups in self._group_rows_of_filtered_scorers(pair_filter, now)
        ]
        for rank, state in enumerate(RANKS):
            state_rows = [row for rows_by_state in matching_rows for row in rows_by_state.get(state, ())]
            total += len(state_rows)
            if len(rows) <= limit and (last_position is None or rank >= last_position.rank):
                # Compute positions only until the page is full, because the states are sorted worst first.
                candidates = [
                    (Cursor(rank, row.compute_sort_value(state, now), row.scorer, row.cluster), row)
                    for row in state_rows
                ]
                if last_position is not None:
                    candidates = [candidate for candidate in candidates if candidate[0] > last_position]
                rows += nsmallest(limit + 1 - len(rows), candidates)
        next_cursor = str(rows[limit - 1][0]) if len(rows) > limit else None
        pair_rows = self._make_pair_rows([position for position, _ in rows[:limit]], now)
        return PairPage(at=now, total=total, cursor=next_cursor, pairs=pair_rows)

    def reasons(self, scorers: Collection[str]) -> set[str]:
        """Return all reasons for which pairs of these scorers have no new score."""
        scorer_groups = self._group_rows_of_filtered_scorers(PairFilter(scorers=scorers), self._clock())
        return {failure.reason for groups in scorer_groups for _, _, failure in groups.reasons}

    def pair(self, cluster: str, scorer: str) -> PairDetail:
        """Return the details of a pair with its newest cycles. Its counters are zero if it never ran."""
        record = self._registry.read_scorer(scorer)
        cluster_record = self._registry.read_cluster(cluster)
        notice = self._notices.read_cluster(cluster)
        name = keys.pair(cluster, scorer)
        now = self._clock()
        return make_pair_detail(
            self._pairs.read_state(cluster, scorer),
            record=record,
            entry=self._schedule.read_entry(name),
            overrides=self._schedule.read_overrides_of(scorer, [cluster]),
            due=self._schedule.read_due_times([name]).get(name),
            history=self._pairs.read_history(cluster, scorer),
            now=now,
            cluster_problem=(notice.problem if notice else "") or Agents(self._redis).find_problem(cluster_record),
            inputs=list_inputs(self._redis, cluster, record, now),
        )

    def updates(self, since: int, limit: int = 5000) -> Changes:
        """Return at most `limit` pairs that changed after the sequence number `since`.

        `FleetOverview.sequence` is the newest number.
        """
        with self._redis.pipeline(transaction=False) as pipe:
            # Read the sequence number before the changes, so that a concurrent change is reported twice, not missed.
            pipe.get(keys.SEQUENCE)
            pipe.zrange(keys.CHANGED, f"({since}", "+inf", byscore=True, offset=0, num=limit, withscores=True)
            sequence, rows = pipe.execute()
        has_more = len(rows) >= limit
        newest_sequence = int(rows[-1][1]) if has_more else int(sequence or 0)
        return Changes(
            sequence=newest_sequence, pairs=[keys.split_pair(str(pair)) for pair, _ in rows], has_more=has_more
        )

    def scores(
        self,
        cluster: str | None = None,
        scorer: str | None = None,
        *,
        states: Collection[Verdict] | None = None,
        limit: int | None = None,
        after: str | None = None,
        max_bytes: float = math.inf,
    ) -> ScoreList:
        """Return the newest scores of all pairs of the schedule, or only those of a cluster or a scorer.

        Returns at most `limit` scores (None: all), sorted by cluster and scorer. With `states`, returns at most 200
        pairs in these states, worst first. `after` is `continue` of the previous response. A page ends early at about
        `max_bytes`; a single score that exceeds it is returned without most of its items.
        """
        self._check_names(cluster, scorer)
        if states is None:
            pairs, total, next_cursor = self._select_page(cluster, scorer, limit, after)
        else:
            pair_filter = PairFilter(scorer=scorer, clusters=None if cluster is None else [cluster], states=states)
            rows = self.pairs(pair_filter, limit=limit or MAX_ROWS, cursor=after)
            pairs, total, next_cursor = [(row.cluster, row.scorer) for row in rows.pairs], rows.total, rows.cursor
        now = self._clock()
        views: list[ScoreView] = []
        page_bytes = 0
        for view, score_bytes in self._read_score_views(pairs, now):
            page_bytes += _BYTES_PER_SCORE + 2 * score_bytes
            if views and page_bytes > max_bytes and states is None:
                # Pages with states do not end early, because their cursor marks the end of a full page.
                next_cursor = keys.pair(views[-1].cluster, views[-1].scorer)
                break
            views.append(_truncate_items(view) if page_bytes > max_bytes else view)
        upstream_scores = self._read_upstream_scores(cluster, scorer) if after is None else []
        return ScoreList(at=now, scores=views, upstream_scores=upstream_scores, total=total, continue_=next_cursor)

    def schedule(
        self,
        cluster: str | None = None,
        scorer: str | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
    ) -> ScheduleList:
        """Return the entries of the schedule with users' overrides. Filters and pages are those of `scores`."""
        self._check_names(cluster, scorer)
        pairs, total, next_cursor = self._select_page(cluster, scorer, limit, after)
        entries = self._schedule.read_entries(keys.pair(*pair) for pair in pairs)
        overrides = self._schedule.read_overrides()
        due_times = self._schedule.read_due_times(entry.pair for entry in entries)
        now = self._clock()
        views = [make_entry_view(entry, overrides, due_times.get(entry.pair), now) for entry in entries]
        return ScheduleList(at=now, entries=views, total=total, continue_=next_cursor)

    def history(self, cluster: str, scorer: str, *, limit: int | None = None, after: str | None = None) -> HistoryList:
        """Return the newest cycles of one pair and its counters. Both are empty if it never ran.

        Returns at most `limit` cycles (None: all), starting after the run with the id `after`.
        """
        self._check_names(cluster, scorer)
        cycles = self._pairs.read_history(cluster, scorer)
        earlier_cycles = cycles
        if after is not None:
            index = next((index for index, cycle in enumerate(cycles) if cycle.run == after), None)
            # If the run is no longer stored, compare run ids, because earlier runs have smaller ids.
            earlier_cycles = [cycle for cycle in cycles if cycle.run < after] if index is None else cycles[index + 1 :]
        page = earlier_cycles[:limit]
        return HistoryList(
            cluster=cluster,
            scorer=scorer,
            books=make_books_view(self._pairs.read_state(cluster, scorer)),
            cycles=[make_cycle_view(cluster, scorer, cycle) for cycle in page],
            total=len(cycles),
            cursor=page[-1].run if len(page) < len(earlier_cycles) else None,
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
        """Return actions of users, newest first. The arguments are those of `dsf.fleet.changes.read_changes`.

        Accepts names of removed scorers and clusters that a recorded change mentions.
        """
        try:
            self._check_names(cluster, scorer)
        except UnknownNameError:
            recorded_changes = read_changes(self._redis).changes
            self._check_names(
                None if any(cluster in change.clusters for change in recorded_changes) else cluster,
                None if any(scorer == change.scorer for change in recorded_changes) else scorer,
            )
        return read_changes(self._redis, limit=limit, cursor=after, scorer=scorer, cluster=cluster, since=since)

    def unready(self, name: str) -> UnreadyScorer | None:
        """Return the conditions of a DynamicScorer, or None if the hub controller has no notice of this name."""
        notice = self._notices.read_scorer(name)
        return make_unready_scorer(notice) if notice is not None else None

    # --- parts -------------------------------------------------------------------------------------------------------

    def _select_page(
        self, cluster: str | None, scorer: str | None, limit: int | None, after: str | None
    ) -> tuple[list[tuple[str, str]], int, str | None]:
        """Return at most `limit` pairs (None: all), the total of all pages, and the next cursor."""
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

    def _read_upstream_scores(self, cluster: str | None = None, scorer: str | None = None) -> list[UpstreamScore]:
        """Return the first valid scores of the original project's agent, also of scorers that cannot run."""
        scores: list[UpstreamScore] = []
        for pair, cause in self._pairs.read_unwritten().items():
            pair_cluster, pair_scorer = keys.split_pair(pair)
            if cause.is_upstream_score and cluster in (None, pair_cluster) and scorer in (None, pair_scorer):
                view = UpstreamScore(cluster=pair_cluster, scorer=pair_scorer, since=cause.since, message=cause.message)
                scores.append(view)
        return scores[:_MAX_UPSTREAM_SCORES]

    def _read_score_views(self, pairs: Sequence[tuple[str, str]], now: float) -> Iterator[tuple[ScoreView, int]]:
        """Yield the view of each pair's newest score, and the score's bytes in Redis."""
        records, rows = self._registry.read_scorers(), self.rows()
        for state in self._pairs.read_states(pairs):
            row = rows.get(state.scorer, {}).get(state.cluster)
            is_paused = row is not None and row.find_state(now) is Verdict.PAUSED
            yield make_score_view(state, records, now, is_paused=is_paused), state.score_bytes

    def _check_names(self, cluster: str | None, scorer: str | None) -> None:
        """Raise UnknownScorerError or UnknownClusterError if a name is not registered."""
        if scorer is not None:
            self._registry.read_scorer(scorer)
        if cluster is not None:
            self._registry.read_cluster(cluster)

    def _make_overviews(
        self,
        records: Mapping[str, ScorerRecord],
        groups: Mapping[str, RowGroups],
        notices: Mapping[str, ScorerNotice],
        config_reads: Mapping[str, ConfigRead],
        now: float,
    ) -> list[ScorerOverview]:
        overrides = self._schedule.read_overrides()
        return [
            make_scorer_overview(
                record,
                groups.get(name) or RowGroups({}, now),
                overrides,
                now,
                conditions=make_condition_views(notices.get(name), unmet_only=True),
                config_read=find_config_read_time(config_reads.get(name)),
            )
            for name, record in records.items()
        ]

    def _group_rows(self, now: float) -> dict[str, RowGroups]:
        """Return the groups of each scorer's rows by state at `now` (unix seconds)."""
        self._cached_groups = groups = group_rows(self.rows(), now, self._cached_groups)
        return groups

    def _group_rows_of_filtered_scorers(self, pair_filter: PairFilter, now: float) -> Iterator[RowGroups]:
        """Yield the groups of the scorers that the filter names. Raises UnknownScorerError."""
        scorer = self._registry.read_scorer(pair_filter.scorer).name if pair_filter.scorer is not None else None
        for name, groups in sorted(self._group_rows(now).items()):
            if scorer in (None, name) and (pair_filter.scorers is None or name in pair_filter.scorers):
                yield groups

    def _make_pair_rows(self, positions: Sequence[Cursor], now: float) -> list[PairRow]:
        """Return the table rows of the pairs at these positions."""
        names = [(position.cluster, position.scorer) for position in positions]
        records = self._registry.read_scorers()
        due_times = self._schedule.read_due_times(keys.pair(*name) for name in names)
        return [
            make_pair_row(state, RANKS[position.rank], records.get(position.scorer), due_times.get(state.pair), now)
            for position, state in zip(positions, self._pairs.read_rows(names), strict=True)
        ]


def _truncate_items(view: ScoreView) -> ScoreView:
    """Return the view with only its first items and results."""
    limit = _MAX_ITEMS_IN_LARGE_SCORE
    return view.model_copy(update={"items": view.items[:limit], "results": view.results[:limit]})
