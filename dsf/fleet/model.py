"""Queries of the read model: the fleet, a scorer, a cluster, pages of pairs, one pair. The cost depends on the answer,
not on the fleet; a page has at most 200 rows.
"""

from __future__ import annotations

import fnmatch
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis

from dsf import keys
from dsf.errors import QueryError
from dsf.fleet import pairindex
from dsf.fleet.overviews import (
    Bucket,
    Changes,
    ClusterDetail,
    ClusterOverview,
    ClusterPage,
    ClusterValue,
    ConditionView,
    FleetOverview,
    PairDetail,
    PairPage,
    PairRow,
    ScorerDetail,
    ScorerOverview,
    Spread,
    StateCounts,
    UnreadyScorer,
)
from dsf.fleet.pairindex import Place, Source
from dsf.fleet.places import Cursor, judged, no_cursor, segments
from dsf.fleet.reasongroups import reason_groups
from dsf.fleet.rows import pair_detail, pair_row, read_at
from dsf.fleet.verdict import Verdict
from dsf.store.agents import Agents
from dsf.store.entries import ALL_CLUSTERS, interval_in_force
from dsf.store.notices import Notices, ScorerNotice
from dsf.store.pairs import Pairs
from dsf.store.registry import Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore
from dsf.store.ticking import ticks_problem

#: Most rows in one answer.
MAX_ROWS: Final = 200
#: Groups shown per scorer.
MAX_REASONS: Final = 20
#: Bounds of the age histogram in seconds.
AGE_BOUNDS: Final = (15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 21_600.0, 86_400.0)
#: Seconds after its due time at which a pair without a tick counts as overdue.
OVERDUE: Final = 5.0
_ENDS: Final = 10


@dataclass(frozen=True)
class PairFilter:
    """Filter of pairs: all given conditions must match. `scorers` and `clusters` are names; `reason` and `stage` are
    those of failing pairs, and of pairs whose ticks were not sent; `why` is a predicate on stage and reason."""

    scorer: str | None = None
    scorers: Collection[str] | None = None
    clusters: Collection[str] | None = None
    states: Collection[Verdict] | None = None
    stage: str | None = None
    reason: str | None = None
    why: Callable[[str, str], bool] | None = None


class FleetModel:
    """Answers from the read model. Thread-safe.

    Methods raise redis.RedisError when Redis cannot be read, UnknownScorerError or UnknownClusterError for an
    unregistered name, and QueryError or CursorError for an invalid query.
    """

    def __init__(self, client: redis.Redis, clock: Callable[[], float] = time.time) -> None:
        self._redis = client
        self._registry = Registry(client)
        self._pairs = Pairs(client)
        self._schedule = ScheduleStore(client)
        self._notices = Notices(client)
        self._clock = clock

    def fleet(self) -> FleetOverview:
        """The whole fleet, with every scorer."""
        now = self._clock()
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.get(keys.MODEL_SEQUENCE)
            pipe.hlen(keys.MODEL_MARKED)
            pipe.hlen(keys.CLUSTERS)
            pipe.zcount(keys.DUE, "-inf", now - OVERDUE)
            pipe.hgetall(keys.BEAT_STATS)
            sequence, pending, clusters, overdue, stats = pipe.execute()
        notices = self._notices.scorers()
        scorers = [
            one.model_copy(update={"conditions": _conditions(notices.get(one.name), unmet=True)})
            for one in self.scorers()
        ]
        known = {one.name for one in scorers}
        unready = [_unready(one) for name, one in sorted(notices.items()) if name not in known]
        states = _sum(scorer.states for scorer in scorers)
        return FleetOverview(
            at=now,
            sequence=int(sequence or 0),
            pending=pending,
            clusters=clusters,
            pairs=states.total,
            states=states,
            overdue=overdue,
            ticks_problem=ticks_problem(self._redis, now),
            lags=_lags(stats, "lag:"),
            scorers=scorers,
            scorers_total=len(scorers),
            unready=unready,
            unready_total=len(unready),
        )

    def scorers(self) -> list[ScorerOverview]:
        """Every registered scorer, worst first."""
        records = self._registry.scorers()
        found = self._overviews(list(records.values()))
        return sorted(found, key=lambda one: (*(-number for number in _worst(one.states)), one.name))

    def scorer(self, name: str) -> ScorerDetail:
        """One scorer."""
        record = self._registry.scorer(name)
        [one] = self._overviews([record])
        key = keys.model_values(name)
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.zrange(key, 0, _ENDS - 1, withscores=True)
            pipe.zrange(key, 0, _ENDS - 1, desc=True, withscores=True)
            pipe.hmget(keys.BEAT_LAGS, [f"{name}:{bound}" for bound in (*_bounds(), "+Inf")])
            bottom, top, lags = pipe.execute()
        [values] = pairindex.spread(self._redis, [key], None)
        counted = {
            f"{name}:{bound}": number for bound, number in zip((*_bounds(), "+Inf"), lags, strict=True) if number
        }
        return ScorerDetail(
            **{field: getattr(one, field) for field in ScorerOverview.model_fields if field != "conditions"},
            location=record.location,
            score_destination=record.destination,
            validity_seconds=record.validity,
            rate_limit=record.rate_limit,
            config_read=read_at(self._notices.read(name)),
            values=values,
            top=_values(top),
            bottom=_values(bottom),
            lags=_lags(counted, f"{name}:"),
            conditions=_conditions(self._notices.scorer(name)),
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
        limit = _limit(limit)
        now = self._clock()
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.hkeys(keys.CLUSTERS)
            pipe.zrange(keys.MODEL_CLUSTERS, 0, -1, withscores=True)
            pipe.hkeys(keys.SCORERS)
            known, bad, scorers = pipe.execute()
        badness = {str(cluster): float(number) for cluster, number in bad}
        wanted = {str(name) for name in known}
        if names is not None:
            wanted &= set(names)
        if paired:
            wanted = self._paired(sorted(wanted), [str(name) for name in scorers])
        order = sorted((-badness.get(name, 0.0), name) for name in wanted)
        if cursor is not None:
            after = _cluster_cursor(cursor)
            order = [one for one in order if one > after]
        shown = [name for _, name in order[:limit]]
        following = None
        if len(order) > limit:
            number, name = order[limit - 1]
            following = f"{number!r}/{name}"
        return ClusterPage(
            at=now,
            total=len(wanted),
            cursor=following,
            clusters=self._cluster_overviews(shown, sorted(map(str, scorers)), now),
        )

    def cluster_states(self) -> dict[str, StateCounts]:
        """The states of the pairs of each cluster. Reads the whole model: call it rarely."""
        now = self._clock()
        with self._redis.pipeline(transaction=False) as pipe:
            for scorer in self._redis.smembers(keys.MODEL_SCORERS):
                pipe.zrange(keys.model_states(str(scorer)), 0, -1, withscores=True)
            answers = pipe.execute()
        found: dict[str, dict[str, int]] = {}
        for rows in answers:
            for cluster, place in rows:
                sums = found.setdefault(str(cluster), {})
                state = judged(place, now).value
                sums[state] = sums.get(state, 0) + 1
        return {cluster: StateCounts(**sums) for cluster, sums in found.items()}

    def labels(self) -> dict[str, dict[str, str]]:
        """The labels of each cluster, without those of addons."""
        return {name: one.labels for name, one in self._notices.clusters().items()}

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
        scorers = sorted(self._registry.scorers())
        [overview] = self._cluster_overviews([name], scorers, now)
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.llen(keys.spoke_queue(name))
            pipe.exists(*keys.mail_slots(name))
            pipe.hget(keys.KEYS_USED, name)
            for scorer in scorers:
                pipe.zscore(keys.model_ages(scorer), name)
            queue, mail, used, *ages = pipe.execute()
        agent = Agents(self._redis).one(name)
        notice = self._notices.cluster(name)
        return ClusterDetail(
            **{field: getattr(overview, field) for field in ClusterOverview.model_fields},
            agent_version=agent.version if agent else "",
            agent_problem=Agents(self._redis).problem(record),
            problem=notice.problem if notice else "",
            last_seen=max((float(age) for age in ages if age is not None), default=None),
            queue=queue,
            mail=mail,
            key_ids=list(record.key_ids),
            key_since=record.key_since or None,
            used_key_id=int(used) if used else None,
            labels=notice.labels if notice else {},
            absent=notice.absent if notice else {},
        )

    def pairs(self, wanted: PairFilter | None = None, *, limit: int = MAX_ROWS, cursor: str | None = None) -> PairPage:
        """Pairs that match a filter, worst first; at most `limit`, and never more than 200."""
        wanted = wanted or PairFilter()
        limit = _limit(limit)
        now = self._clock()
        after = Cursor.read(cursor) if cursor is not None else None
        sources = self._sources(wanted)
        ranges = segments(now, wanted.states)
        if wanted.clusters is None:
            total, rows = pairindex.page(self._redis, sources, ranges, limit, after)
        else:
            total, rows = pairindex.pick(self._redis, sources, wanted.clusters, ranges, limit, after, now)
        following = None
        if len(rows) > limit:
            following = str(Cursor(*rows[limit - 1][:4]))
        return PairPage(at=now, total=total, cursor=following, pairs=self._rows(rows[:limit], now))

    def reasons(self, scorers: Collection[str]) -> set[str]:
        """All reasons for missing new scores of these scorers."""
        return {group.split(":", 2)[2] for _, group in self._groups(scorers)}

    def pair(self, cluster: str, scorer: str) -> PairDetail:
        """One pair with its newest cycles; counters are zero if it never ran."""
        record = self._registry.scorer(scorer)
        about = self._registry.cluster(cluster)
        notice = self._notices.cluster(cluster)
        now = self._clock()
        name = keys.pair(cluster, scorer)
        overrides = self._schedule.overrides_of(scorer, [cluster])
        place = self._redis.zscore(keys.model_states(scorer), cluster)
        due = self._schedule.due_times([name]).get(name)
        found = pair_detail(
            self._pairs.state(cluster, scorer),
            judged(float(place), now) if place is not None else None,
            record=record,
            entry=self._schedule.entry(name),
            overrides=overrides,
            due=due,
            history=self._pairs.history(cluster, scorer),
            now=now,
        )
        problem = (notice.problem if notice else "") or Agents(self._redis).problem(about)
        return found.model_copy(update={"cluster_problem": problem})

    def changes(self, since: int, limit: int = 5000) -> Changes:
        """Pairs that changed after this sequence number; the newest number is `FleetOverview.sequence`."""
        with self._redis.pipeline(transaction=False) as pipe:
            # First: a concurrent change is then reported twice rather than never.
            pipe.get(keys.MODEL_SEQUENCE)
            pipe.zrange(keys.MODEL_CHANGED, f"({since}", "+inf", byscore=True, offset=0, num=limit, withscores=True)
            sequence, rows = pipe.execute()
        more = len(rows) >= limit
        newest = int(rows[-1][1]) if more else int(sequence or 0)
        return Changes(sequence=newest, pairs=[keys.split_pair(str(pair)) for pair, _ in rows], more=more)

    def unready(self, name: str) -> UnreadyScorer | None:
        """A DynamicScorer that could not run yet; None for others."""
        notice = self._notices.scorer(name)
        return _unready(notice) if notice is not None else None

    # --- parts -------------------------------------------------------------------------------------------------------

    def _overviews(self, records: Sequence[ScorerRecord]) -> list[ScorerOverview]:
        now = self._clock()
        names = [record.name for record in records]
        counts = pairindex.count(self._redis, pairindex.every(names), now)
        # The sorted values are times: the oldest are the greatest ages.
        moments = pairindex.spread(self._redis, [keys.model_ages(name) for name in names], [], (0.5, 0.1, 0.01))
        ages = [_ages(one, now) for one in moments]
        histograms = self._age_bars(names, now)
        groups = reason_groups(self._redis, {record.name: record for record in records})
        overrides = self._schedule.overrides_of_scorers(names)
        return [
            ScorerOverview(
                name=record.name,
                score_name=record.score_name,
                description=record.description,
                interval_seconds=record.interval,
                effective_interval_seconds=interval_in_force(record.name, ALL_CLUSTERS, record.interval, overrides),
                suspended=record.suspended,
                health_status=record.health,
                problem=record.problem,
                pairs=states.total,
                states=states,
                ages=age.model_copy(update={"histogram": bars}),
                reasons=groups[record.name][:MAX_REASONS],
                reasons_total=len(groups[record.name]),
            )
            for record, states, age, bars in zip(records, counts, ages, histograms, strict=True)
        ]

    def _age_bars(self, names: Sequence[str], now: float) -> list[list[Bucket]]:
        with self._redis.pipeline(transaction=False) as pipe:
            for name in names:
                high = "+inf"
                for bound in (*AGE_BOUNDS, None):
                    # An age of at most this bound is a success not before that time.
                    low = "-inf" if bound is None else repr(now - bound)
                    pipe.zcount(keys.model_ages(name), low, high)
                    high = f"({low}"
            numbers = pipe.execute()
        width = len(AGE_BOUNDS) + 1
        return [
            [
                Bucket(up_to=bound, count=number)
                for bound, number in zip((*AGE_BOUNDS, None), numbers[start : start + width], strict=True)
            ]
            for start in range(0, len(numbers), width)
        ]

    def _cluster_overviews(self, names: list[str], scorers: Sequence[str], now: float) -> list[ClusterOverview]:
        states: dict[str, dict[str, Verdict]] = {name: {} for name in names}
        if names:
            with self._redis.pipeline(transaction=False) as pipe:
                for scorer in scorers:
                    pipe.zmscore(keys.model_states(scorer), names)
                answers = pipe.execute()
            for scorer, places in zip(scorers, answers, strict=True):
                for name, place in zip(names, places, strict=True):
                    if place is not None:
                        states[name][scorer] = judged(float(place), now)
        return [
            ClusterOverview(name=name, pairs=len(found), states=_counted(found.values()), scorers=found)
            for name, found in states.items()
        ]

    def _paired(self, names: list[str], scorers: Iterable[str]) -> set[str]:
        """The given clusters on which one of the scorers runs."""
        if not names:
            return set()
        with self._redis.pipeline(transaction=False) as pipe:
            for scorer in scorers:
                pipe.zmscore(keys.model_states(scorer), names)
            answers = pipe.execute()
        return {name for name, *places in zip(names, *answers, strict=True) if any(one is not None for one in places)}

    def _sources(self, wanted: PairFilter) -> list[Source]:
        if wanted.scorer is not None:
            scorers = [self._registry.scorer(wanted.scorer).name]
        else:
            scorers = sorted(str(name) for name in self._redis.smembers(keys.MODEL_SCORERS))
        if wanted.scorers is not None:
            scorers = [name for name in scorers if name in wanted.scorers]
        if wanted.reason is None and wanted.stage is None and wanted.why is None:
            return pairindex.every(scorers)
        return [
            Source(scorer, keys.model_group(scorer, group))
            for scorer, group in self._groups(scorers)
            if _fits(group, wanted)
        ]

    def _groups(self, scorers: Collection[str]) -> list[tuple[str, str]]:
        """All groups of pairs without a new score, with their scorer: `<state>:<stage>:<reason>`."""
        with self._redis.pipeline(transaction=False) as pipe:
            for scorer in scorers:
                pipe.hkeys(keys.model_groups(scorer))
            groups = pipe.execute()
        return [(scorer, str(group)) for scorer, some in zip(scorers, groups, strict=True) for group in some]

    def _rows(self, places: Sequence[Place], now: float) -> list[PairRow]:
        names = [(place.cluster, place.scorer) for place in places]
        records = self._registry.scorers()
        due = self._schedule.due_times(keys.pair(*name) for name in names)
        return [
            pair_row(state, place.state, records.get(place.scorer), due.get(keys.pair(*name)), now)
            for place, name, state in zip(places, names, self._pairs.verdicts(names), strict=True)
        ]


def _conditions(notice: ScorerNotice | None, *, unmet: bool = False) -> list[ConditionView]:
    """All conditions, or those that are False."""
    told = notice.conditions if notice is not None else ()
    return [ConditionView(**one.model_dump()) for one in told if not unmet or one.status == "False"]


def _unready(notice: ScorerNotice) -> UnreadyScorer:
    return UnreadyScorer(name=notice.name, namespace=notice.namespace, conditions=_conditions(notice))


def _fits(group: str, wanted: PairFilter) -> bool:
    _, stage, reason = group.split(":", 2)
    if wanted.why is not None and not wanted.why(stage, reason):
        return False
    return wanted.stage in (None, stage) and wanted.reason in (None, reason)


def _limit(limit: int) -> int:
    if limit < 1:
        raise QueryError(f"limit: at least 1, not {limit}")
    return min(limit, MAX_ROWS)


def _cluster_cursor(text: str) -> tuple[float, str]:
    number, _, name = text.partition("/")
    try:
        badness = float(number)
    except ValueError:
        raise no_cursor() from None
    # A cursor of pairs has more parts.
    if not math.isfinite(badness) or not name or "/" in name:
        raise no_cursor()
    return badness, name


def _sum(counts: Iterable[StateCounts]) -> StateCounts:
    sums = dict.fromkeys(StateCounts.model_fields, 0)
    for one in counts:
        for name in sums:
            sums[name] += getattr(one, name)
    return StateCounts(**sums)


def _counted(states: Iterable[Verdict]) -> StateCounts:
    sums = dict.fromkeys((str(state) for state in Verdict), 0)
    for state in states:
        sums[state] += 1
    return StateCounts(**sums)


def _worst(states: StateCounts) -> tuple[int, ...]:
    return states.failing, states.expired + states.skipped, states.never, states.empty


def _values(rows: Iterable[tuple[Any, float]]) -> list[ClusterValue]:
    return [ClusterValue(cluster=str(cluster), value=float(value)) for cluster, value in rows]


def _bounds() -> tuple[str, ...]:
    """Upper bounds of the lag histogram as in field names."""
    # Imported here: read-only commands do not need the metrics library.
    from dsf.metrics import LAG_BUCKETS

    return tuple(f"{bound:g}" for bound in LAG_BUCKETS)


def _lags(stats: Mapping[str, Any], prefix: str) -> list[Bucket]:
    bars = [Bucket(up_to=float(bound), count=int(stats.get(prefix + bound, 0))) for bound in _bounds()]
    return [*bars, Bucket(up_to=None, count=int(stats.get(prefix + "+Inf", 0)))]


def _ages(moments: Spread, now: float) -> Spread:
    """Converts times to ages: the oldest is the greatest age."""
    if not moments.count:
        return moments

    def age(moment: float | None) -> float | None:
        return None if moment is None else round(max(0.0, now - moment), 3)

    return Spread(
        count=moments.count,
        minimum=age(moments.maximum),
        maximum=age(moments.minimum),
        p50=age(moments.p50),
        p90=age(moments.p90),
        p99=age(moments.p99),
    )
