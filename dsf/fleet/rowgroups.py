"""Rows grouped by state, kept until a row changes or time brings another state; and scorers and clusters in numbers:
how many of their pairs are in each state, when they succeeded, and why not.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from dsf import keys
from dsf.fleet.snapshot import Rows, SnapshotRow
from dsf.fleet.verdict import Verdict
from dsf.fleet.views import (
    Bucket,
    ClusterOverview,
    ConditionView,
    ReasonGroup,
    ScorerOverview,
    Spread,
    StateCounts,
    UnreadyScorer,
)
from dsf.store.client import whole
from dsf.store.entries import ALL_CLUSTERS, ScheduleOverride, interval_in_force
from dsf.store.notices import ScorerNotice
from dsf.store.pairs import PairFailure
from dsf.store.registry import ScorerRecord

#: Weight of a pair in the order of clusters, worst first.
_WEIGHT: Final = {Verdict.FAILING: 1e8, Verdict.EXPIRED: 1e4, Verdict.SKIPPED: 1e4, Verdict.NEVER: 1.0}


class Groups:
    """The rows of one scorer by state."""

    def __init__(self, rows: Mapping[str, SnapshotRow], now: float) -> None:
        """`rows` by cluster, judged at `now` (unix seconds)."""
        self.rows = rows
        self._since, self._until = now, math.inf
        states: dict[Verdict, list[SnapshotRow]] = {state: [] for state in Verdict}
        for row in rows.values():
            state, end = row.judged(now)
            states[state].append(row)
            self._until = min(self._until, end)
        #: Worst first; a state without rows is left out.
        self.states = {state: state_rows for state, state_rows in states.items() if state_rows}

    def is_current(self, rows: Mapping[str, SnapshotRow], now: float) -> bool:
        """True if they are right for these rows at `now`."""
        return self.rows is rows and self._since <= now < self._until

    @cached_property
    def reasons(self) -> list[tuple[Verdict, SnapshotRow, PairFailure]]:
        """The rows that lack a new score, or have not all results in it, and why."""
        return [
            (state, row, why)
            for state, state_rows in self.states.items()
            for row in state_rows
            if (why := row.why(state)) is not None
        ]

    @cached_property
    def successes(self) -> list[float]:
        """Unix seconds of each row's newest successful cycle, newest first."""
        return sorted((row.last_success for row in self.rows.values() if row.last_success is not None), reverse=True)


def grouped(rows: Rows, now: float, before: Mapping[str, Groups]) -> dict[str, Groups]:
    """Return the rows of each scorer by state at `now` (unix seconds); of `before`, those that still hold."""
    return {
        scorer: previous_groups
        if (previous_groups := before.get(scorer)) is not None and previous_groups.is_current(scorer_rows, now)
        else Groups(scorer_rows, now)
        for scorer, scorer_rows in rows.items()
    }


def by_cluster(groups: Mapping[str, Groups]) -> dict[str, dict[str, Verdict]]:
    """Cluster -> scorer -> state."""
    clusters: dict[str, dict[str, Verdict]] = {}
    for scorer, scorer_groups in groups.items():
        for state, state_rows in scorer_groups.states.items():
            for row in state_rows:
                clusters.setdefault(row.cluster, {})[scorer] = state
    return clusters


def badness(states: Iterable[Verdict]) -> float:
    """How bad a cluster with pairs of these states is: one that fails outweighs all that do not."""
    return sum(_WEIGHT.get(state, 0.0) for state in states)


def reason_groups(record: ScorerRecord, groups: Groups) -> list[ReasonGroup]:
    """Return the groups of a scorer's pairs by reason; most clusters first."""
    sizes: dict[tuple[Verdict, str, str], int] = {}
    newest: dict[tuple[Verdict, str, str], tuple[SnapshotRow, PairFailure]] = {}
    # Reasons of the same time are in order of their clusters' names.
    for state, row, why in sorted(groups.reasons, key=lambda reason: (-reason[2].at, reason[1].cluster)):
        group = (state, why.stage, why.reason)
        sizes[group] = sizes.get(group, 0) + 1
        newest.setdefault(group, (row, why))
    reasons = [_group(record, group[0], *newest[group], size) for group, size in sizes.items()]
    return sorted(reasons, key=lambda reason: (-reason.clusters, reason.reason, reason.stage))


def _group(record: ScorerRecord, state: Verdict, row: SnapshotRow, newest: PairFailure, size: int) -> ReasonGroup:
    # The failure is the reason of failing pairs.
    skips = row.skips if state in (Verdict.SKIPPED, Verdict.EXPIRED, Verdict.NEVER) else None
    return ReasonGroup(
        scorer=record.name,
        state=state,
        stage=newest.stage,
        reason=newest.reason,
        clusters=size,
        cluster=row.cluster,
        run_id=newest.run,
        at=newest.at or None,
        since=skips.since if skips else None,
        message=skips.why(record.rate_limit, record.problem) if skips else newest.message,
    )


def scorer_overview(
    record: ScorerRecord, scorer_groups: Groups, overrides: Mapping[str, ScheduleOverride], now: float, **noticed: Any
) -> ScorerOverview:
    """Return a scorer with its pairs at `now` (unix seconds); `overrides` are the schedule's by target, `noticed` are
    fields of the hub controller's notice."""
    states = StateCounts(**{state.value: len(state_rows) for state, state_rows in scorer_groups.states.items()})
    reasons = reason_groups(record, scorer_groups)
    return ScorerOverview(
        **record.model_dump(
            include={"name", "score_name", "description", "location", "rate_limit", "suspended", "problem"}
        ),
        score_destination=record.destination,
        interval_seconds=record.interval,
        effective_interval_seconds=interval_in_force(record.name, ALL_CLUSTERS, record.interval, overrides),
        intervals_in_force=_intervals(record, scorer_groups.rows, overrides),
        validity_seconds=record.validity,
        health_status=record.health,
        pairs=states.total,
        states=states,
        ages=spread(
            [max(0.0, now - at) for at in scorer_groups.successes],
            # Bounds of the histogram, in seconds.
            (15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 21_600.0, 86_400.0),
        ),
        reasons=reasons[:20],
        reasons_total=len(reasons),
        **noticed,
    )


def _intervals(record: ScorerRecord, clusters: Collection[str], overrides: Mapping[str, ScheduleOverride]) -> list[int]:
    """Return the intervals in force on some cluster, ascending."""
    if not any(override.interval is not None for override in overrides.values()):
        return [record.interval] if clusters else []
    return sorted({interval_in_force(record.name, cluster, record.interval, overrides) for cluster in clusters})


def condition_views(notice: ScorerNotice | None, *, unmet: bool = False) -> list[ConditionView]:
    """Return all conditions, or those that are False."""
    conditions = notice.conditions if notice is not None else ()
    return [
        ConditionView(**condition.model_dump()) for condition in conditions if not unmet or condition.status == "False"
    ]


def unready_scorer(notice: ScorerNotice) -> UnreadyScorer:
    """Return a DynamicScorer that could not run yet."""
    return UnreadyScorer(name=notice.name, namespace=notice.namespace, conditions=condition_views(notice))


def summed(counts: Iterable[StateCounts]) -> StateCounts:
    """Return the states of several."""
    sums = dict.fromkeys(StateCounts.model_fields, 0)
    for states in counts:
        for name in sums:
            sums[name] += getattr(states, name)
    return StateCounts(**sums)


def state_counts(states: Iterable[Verdict]) -> StateCounts:
    """How many there are of each state."""
    return StateCounts(**{state.value: number for state, number in Counter(states).items()})


def cluster_overview(name: str, states: Mapping[str, Verdict]) -> ClusterOverview:
    """Return a cluster; `states` by scorer."""
    return ClusterOverview(
        name=name, pairs=len(states), states=state_counts(states.values()), scorers=dict(sorted(states.items()))
    )


def worst(states: StateCounts) -> tuple[int, ...]:
    """Sorts scorers, the worst last."""
    return states.failing, states.expired + states.skipped, states.never, states.empty


def lag_histogram(stats: Mapping[str, Any], prefix: str) -> list[Bucket]:
    """Return the histogram whose counters have this prefix, by bound in seconds."""

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
    quantiles = [ordered[min(size - 1, int(size * part))] for part in (0, 0.5, 0.9, 0.99, 1)]
    minimum, p50, p90, p99, maximum = quantiles if bounds is None else [round(number, 3) for number in quantiles]
    edges = _tenths(ordered[0], ordered[-1]) if bounds is None else bounds
    below = [0, *(bisect_right(ordered, edge) for edge in edges)]
    bars = [Bucket(up_to=edge, count=high - low) for edge, (low, high) in zip(edges, pairwise(below), strict=True)]
    if bounds is not None:
        bars.append(Bucket(up_to=None, count=size - below[-1]))
    return Spread(count=size, minimum=minimum, p50=p50, p90=p90, p99=p99, maximum=maximum, histogram=bars)


def _tenths(smallest: float, greatest: float) -> list[float]:
    if smallest == greatest:
        return [greatest]
    width = (greatest - smallest) / 10
    return [*(smallest + width * number for number in range(1, 10)), greatest]
