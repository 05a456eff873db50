"""Scorers and clusters in numbers: how many of their pairs are in each state, when they succeeded, and why not."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from dsf import keys
from dsf.fleet.groups import Groups, reason_groups
from dsf.fleet.overviews import (
    Bucket,
    ClusterOverview,
    ConditionView,
    ScorerOverview,
    Spread,
    StateCounts,
    UnreadyScorer,
)
from dsf.fleet.verdict import Verdict
from dsf.store.client import whole
from dsf.store.entries import ALL_CLUSTERS, ScheduleOverride, interval_in_force
from dsf.store.notices import ScorerNotice
from dsf.store.registry import ScorerRecord


def scorer_overview(
    record: ScorerRecord, own: Groups, overrides: Mapping[str, ScheduleOverride], now: float, **noticed: Any
) -> ScorerOverview:
    """A scorer; `own` are its pairs at `now` (unix seconds), `overrides` those of the schedule by target, `noticed` the
    fields that the hub controller told."""
    states = StateCounts(**{state.value: len(some) for state, some in own.states.items()})
    reasons = reason_groups(record, own)
    return ScorerOverview(
        name=record.name,
        score_name=record.score_name,
        description=record.description,
        location=record.location,
        score_destination=record.destination,
        interval_seconds=record.interval,
        effective_interval_seconds=interval_in_force(record.name, ALL_CLUSTERS, record.interval, overrides),
        intervals_in_force=_intervals(record, own.rows, overrides),
        validity_seconds=record.validity,
        rate_limit=record.rate_limit,
        suspended=record.suspended,
        health_status=record.health,
        problem=record.problem,
        pairs=states.total,
        states=states,
        ages=spread(
            [max(0.0, now - at) for at in own.successes],
            # Bounds of the histogram, in seconds.
            (15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 21_600.0, 86_400.0),
        ),
        reasons=reasons[:20],
        reasons_total=len(reasons),
        **noticed,
    )


def _intervals(record: ScorerRecord, clusters: Collection[str], overrides: Mapping[str, ScheduleOverride]) -> list[int]:
    """Those in force on some cluster, ascending."""
    if not any(override.interval is not None for override in overrides.values()):
        return [record.interval] if clusters else []
    return sorted({interval_in_force(record.name, cluster, record.interval, overrides) for cluster in clusters})


def condition_views(notice: ScorerNotice | None, *, unmet: bool = False) -> list[ConditionView]:
    """All conditions, or those that are False."""
    conditions = notice.conditions if notice is not None else ()
    return [
        ConditionView(**condition.model_dump()) for condition in conditions if not unmet or condition.status == "False"
    ]


def unready_scorer(notice: ScorerNotice) -> UnreadyScorer:
    """A DynamicScorer that could not run yet."""
    return UnreadyScorer(name=notice.name, namespace=notice.namespace, conditions=condition_views(notice))


def summed(counts: Iterable[StateCounts]) -> StateCounts:
    """The states of several."""
    sums = dict.fromkeys(StateCounts.model_fields, 0)
    for states in counts:
        for name in sums:
            sums[name] += getattr(states, name)
    return StateCounts(**sums)


def state_counts(states: Iterable[Verdict]) -> StateCounts:
    """How many there are of each state."""
    return StateCounts(**{state.value: number for state, number in Counter(states).items()})


def cluster_overview(name: str, states: Mapping[str, Verdict]) -> ClusterOverview:
    """A cluster; `states` by scorer."""
    return ClusterOverview(
        name=name, pairs=len(states), states=state_counts(states.values()), scorers=dict(sorted(states.items()))
    )


def worst(states: StateCounts) -> tuple[int, ...]:
    """Sorts scorers, the worst last."""
    return states.failing, states.expired + states.skipped, states.never, states.empty


def lag_histogram(stats: Mapping[str, Any], prefix: str) -> list[Bucket]:
    """The histogram whose counters have this prefix, by bound in seconds."""

    def count(bound: str) -> int:
        return whole("counter", prefix + bound, stats.get(prefix + bound))

    return [
        *(Bucket(up_to=float(bound), count=count(bound)) for bound in keys.LAG_BOUNDS),
        Bucket(up_to=None, count=count("+Inf")),
    ]


def spread(numbers: Iterable[float], bounds: Sequence[float] | None) -> Spread:
    """How numbers are spread; `bounds` of the bars ascending, None for ten bars from minimum to maximum."""
    ordered = sorted(numbers)
    size = len(ordered)
    if not size:
        return Spread(histogram=[Bucket(up_to=bound, count=0) for bound in (*bounds, None)] if bounds else [])
    shown = [ordered[min(size - 1, int(size * part))] for part in (0, 0.5, 0.9, 0.99, 1)]
    least, p50, p90, p99, most = shown if bounds is None else [round(number, 3) for number in shown]
    edges = _tenths(ordered[0], ordered[-1]) if bounds is None else bounds
    below = [0, *(bisect_right(ordered, edge) for edge in edges)]
    bars = [Bucket(up_to=edge, count=high - low) for edge, (low, high) in zip(edges, pairwise(below), strict=True)]
    if bounds is not None:
        bars.append(Bucket(up_to=None, count=size - below[-1]))
    return Spread(count=size, minimum=least, p50=p50, p90=p90, p99=p99, maximum=most, histogram=bars)


def _tenths(least: float, greatest: float) -> list[float]:
    if least == greatest:
        return [greatest]
    width = (greatest - least) / 10
    return [*(least + width * number for number in range(1, 10)), greatest]
