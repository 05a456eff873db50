"""States of scorers for `dsf status` and the JSON API, from the read model instead of all pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import redis

from dsf import keys
from dsf.fleet import pairindex
from dsf.fleet.overviews import ReasonGroup, StateCounts
from dsf.fleet.pairindex import Source
from dsf.fleet.places import Segment, segments
from dsf.fleet.reasongroups import reason_groups
from dsf.fleet.rows import age_of, failure_view, skips_view
from dsf.fleet.verdict import Verdict
from dsf.fleet.views import ClusterCounts, FailureView, IdleClusters, RemarkView, ScorerView
from dsf.store.entries import ALL_CLUSTERS, Override, interval_in_force
from dsf.store.pairs import Pairs
from dsf.store.registry import ScorerRecord

#: Failures shown per scorer.
MAX_FAILURES: Final = 10
#: Most failing pairs read per scorer, longest without a success first; the newest failures of these are shown.
_LOOKED_AT: Final = 50


def scorer_views(
    client: redis.Redis, records: Sequence[ScorerRecord], overrides: Mapping[str, Override], now: float
) -> list[ScorerView]:
    """One view per record, in their order. Raises redis.RedisError."""
    sources = pairindex.every(record.name for record in records)
    counts = pairindex.count(client, sources, now)
    with client.pipeline(transaction=False) as pipe:
        for record in records:
            pipe.zrange(keys.model_ages(record.name), 0, 0, desc=True, withscores=True)
            pipe.hkeys(keys.model_groups(record.name))
        answers = pipe.execute()
    pairs = Pairs(client)
    reasons = reason_groups(client, {record.name: record for record in records})
    found = []
    for number, (record, source, states) in enumerate(zip(records, sources, counts, strict=True)):
        newest, groups = answers[2 * number : 2 * number + 2]
        last_success = float(newest[0][1]) if newest else None
        found.append(
            ScorerView(
                name=record.name,
                score_name=record.score_name,
                description=record.description,
                location=record.location,
                score_destination=record.destination,
                interval_seconds=record.interval,
                intervals_in_force=_intervals(client, record, overrides, states.total),
                validity_seconds=record.validity,
                rate_limit=record.rate_limit,
                suspended=record.suspended,
                health_status=record.health,
                problem=record.problem,
                clusters=_counts(states),
                last_success=last_success,
                age_seconds=age_of(last_success, now),
                failures=_failures(client, pairs, source, now) if states.failing else [],
                remarks=_remarks(reasons[record.name], now),
                idle=_idle(client, pairs, record, groups, states, now),
            )
        )
    return found


def _counts(states: StateCounts) -> ClusterCounts:
    return ClusterCounts(
        desired=states.total,
        succeeding=states.ok,
        failing=states.failing,
        empty=states.empty,
        expired=states.expired,
        waiting=states.never,
        paused=states.paused,
        skipped=states.skipped,
    )


def _intervals(client: redis.Redis, record: ScorerRecord, overrides: Mapping[str, Override], total: int) -> list[int]:
    """All intervals in force on clusters. Only clusters with their own override are read."""
    if not total:
        return []
    own = [
        cluster
        for cluster, scorer in map(keys.split_pair, overrides)
        if scorer == record.name and cluster != ALL_CLUSTERS
    ]
    places = client.zmscore(keys.model_states(record.name), own) if own else []
    there = [cluster for cluster, place in zip(own, places, strict=True) if place is not None]
    found = {interval_in_force(record.name, cluster, record.interval, overrides) for cluster in there}
    if len(there) < total:
        found.add(interval_in_force(record.name, ALL_CLUSTERS, record.interval, overrides))
    return sorted(found)


def _failures(client: redis.Redis, pairs: Pairs, source: Source, now: float) -> list[FailureView]:
    names = _first(client, source, segments(now, [Verdict.FAILING]), _LOOKED_AT)
    found = [one for state in pairs.verdicts(names) if (one := failure_view(state)) is not None]
    return sorted(found, key=lambda one: one.at, reverse=True)[:MAX_FAILURES]


def remark_order(one: RemarkView) -> tuple[bool, int, str]:
    """Key by which remarks are sorted."""
    return one.state is not Verdict.EMPTY, -one.clusters, one.reason


def _remarks(groups: Iterable[ReasonGroup], now: float) -> list[RemarkView]:
    found = [
        RemarkView(**{name: getattr(one, name) for name in RemarkView.model_fields} | {"at": one.at or now})
        for one in groups
        if one.state in (Verdict.EMPTY, Verdict.OK)
    ]
    return sorted(found, key=remark_order)


def _idle(
    client: redis.Redis,
    pairs: Pairs,
    record: ScorerRecord,
    groups: Iterable[str],
    states: StateCounts,
    now: float,
) -> list[IdleClusters]:
    """Why clusters get no ticks: one line per reason, with the longest waiting cluster."""
    found = []
    for group in groups:
        if group.startswith(f"{Verdict.SKIPPED}:"):
            source = Source(record.name, keys.model_group(record.name, group))
            found += _one_idle(client, pairs, record, source, Verdict.SKIPPED, states.skipped, now)
    if states.paused and not record.suspended:
        [source] = pairindex.every([record.name])
        found += _one_idle(client, pairs, record, source, Verdict.PAUSED, states.paused, now)
    return sorted(found, key=lambda one: (-one.clusters, one.reason))


def _one_idle(
    client: redis.Redis,
    pairs: Pairs,
    record: ScorerRecord,
    source: Source,
    state: Verdict,
    most: int,
    now: float,
) -> list[IdleClusters]:
    ranges = segments(now, [state])
    first = _first(client, source, ranges, 1)
    if not first:
        return []
    [pair] = pairs.verdicts(first)
    said = skips_view(pair, record)
    if said is None:
        # Paused recently: no tick has been due yet.
        return []
    number = most if state is Verdict.PAUSED else int(client.zcount(source.key, ranges[0].low, ranges[0].high))
    return [IdleClusters(**{name: getattr(said, name) for name in type(said).model_fields}, clusters=number)]


def _first(client: redis.Redis, source: Source, ranges: Sequence[Segment], number: int) -> list[tuple[str, str]]:
    _, places = pairindex.page(client, [source], ranges, number, None)
    return [(place.cluster, place.scorer) for place in places[:number]]
