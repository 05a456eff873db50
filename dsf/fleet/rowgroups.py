"""Groups rows by state, and makes the overviews of scorers and clusters from these groups.

Groups are cached until a row changes, or until the passage of time changes the state of a row. An overview contains the
number of pairs in each state, the ages of their scores, and the reasons why they have no new score.
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
from dsf.store.client import parse_counter
from dsf.store.entries import ALL_CLUSTERS, ScheduleOverride, find_interval
from dsf.store.notices import ScorerNotice
from dsf.store.pairs import PairFailure
from dsf.store.registry import ScorerRecord

#: Weight of a pair's state in the order of clusters. One failing pair outweighs any number of other pairs.
_WEIGHTS: Final = {Verdict.FAILING: 1e8, Verdict.EXPIRED: 1e4, Verdict.SKIPPED: 1e4, Verdict.NEVER_SUCCEEDED: 1.0}
#: Bounds in seconds of the histogram of ages.
_AGE_BOUNDS: Final = (15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 21_600.0, 86_400.0)
#: Maximum number of reasons in the overview of a scorer.
_MAX_REASONS: Final = 20


class RowGroups:
    """The rows of one scorer by state."""

    def __init__(self, rows: Mapping[str, SnapshotRow], now: float) -> None:
        """Group `rows` (cluster -> row) by their state at `now` (unix seconds)."""
        self.rows = rows
        # Start and end of the time in which the rows have these states (unix seconds).
        self._valid_from, self._valid_until = now, math.inf
        states: dict[Verdict, list[SnapshotRow]] = {state: [] for state in Verdict}
        for row in rows.values():
            state, end = row.find_state_and_end(now)
            states[state].append(row)
            self._valid_until = min(self._valid_until, end)
        #: Rows by state, worst first. States without rows are omitted.
        self.states = {state: state_rows for state, state_rows in states.items() if state_rows}

    def is_current(self, rows: Mapping[str, SnapshotRow], now: float) -> bool:
        """True if the groups are valid for these rows at `now` (unix seconds)."""
        return self.rows is rows and self._valid_from <= now < self._valid_until

    @cached_property
    def reasons(self) -> list[tuple[Verdict, SnapshotRow, PairFailure]]:
        """State, row and failure of each row that has no new score, or whose score lacks results."""
        return [
            (state, row, failure)
            for state, state_rows in self.states.items()
            for row in state_rows
            if (failure := row.find_failure(state)) is not None
        ]

    @cached_property
    def success_times(self) -> list[float]:
        """Times of the last successful cycles of all rows (unix seconds), newest first."""
        return sorted((row.last_success for row in self.rows.values() if row.last_success is not None), reverse=True)


def group_rows(rows: Rows, now: float, previous: Mapping[str, RowGroups]) -> dict[str, RowGroups]:
    """Return the groups of each scorer's rows at `now` (unix seconds). Reuses groups of `previous` that are current."""
    return {
        scorer: previous_groups
        if (previous_groups := previous.get(scorer)) is not None and previous_groups.is_current(scorer_rows, now)
        else RowGroups(scorer_rows, now)
        for scorer, scorer_rows in rows.items()
    }


def group_states_by_cluster(groups: Mapping[str, RowGroups]) -> dict[str, dict[str, Verdict]]:
    """Return the states of all pairs as a mapping cluster -> scorer -> state."""
    clusters: dict[str, dict[str, Verdict]] = {}
    for scorer, scorer_groups in groups.items():
        for state, state_rows in scorer_groups.states.items():
            for row in state_rows:
                clusters.setdefault(row.cluster, {})[scorer] = state
    return clusters


def compute_badness(states: Iterable[Verdict]) -> float:
    """Return the sum of the weights of these states, which orders clusters."""
    return sum(_WEIGHTS.get(state, 0.0) for state in states)


def make_reason_groups(record: ScorerRecord, groups: RowGroups) -> list[ReasonGroup]:
    """Return the groups of a scorer's pairs by reason, the groups with the most clusters first."""
    sizes: dict[tuple[Verdict, str, str], int] = {}
    newest_by_group: dict[tuple[Verdict, str, str], tuple[SnapshotRow, PairFailure]] = {}
    # Sort failures of the same time by cluster, so that the order is stable.
    for state, row, failure in sorted(groups.reasons, key=lambda reason: (-reason[2].at, reason[1].cluster)):
        group = (state, failure.stage, failure.reason)
        sizes[group] = sizes.get(group, 0) + 1
        newest_by_group.setdefault(group, (row, failure))
    reasons = [_make_reason_group(record, group[0], *newest_by_group[group], size) for group, size in sizes.items()]
    return sorted(reasons, key=lambda reason: (-reason.clusters, reason.reason, reason.stage))


def _make_reason_group(
    record: ScorerRecord, state: Verdict, row: SnapshotRow, newest_failure: PairFailure, size: int
) -> ReasonGroup:
    # Use skipped ticks only as the reason of these states. The reason of a failing pair is its failure.
    skips = row.skips if state in (Verdict.SKIPPED, Verdict.EXPIRED, Verdict.NEVER_SUCCEEDED) else None
    return ReasonGroup(
        scorer=record.name,
        state=state,
        stage=newest_failure.stage,
        reason=newest_failure.reason,
        clusters=size,
        cluster=row.cluster,
        run_id=newest_failure.run,
        at=newest_failure.at or None,
        since=skips.first_at if skips else None,
        message=skips.explain(record.rate_limit, record.problem) if skips else newest_failure.message,
    )


def make_scorer_overview(
    record: ScorerRecord,
    scorer_groups: RowGroups,
    overrides: Mapping[str, ScheduleOverride],
    now: float,
    **notice_fields: Any,
) -> ScorerOverview:
    """Return the overview of a scorer and its pairs at `now` (unix seconds).

    `overrides` are the overrides of the schedule by target. `notice_fields` are further fields of the view, from the
    hub controller's notice.
    """
    states = StateCounts(**{state.value: len(state_rows) for state, state_rows in scorer_groups.states.items()})
    reasons = make_reason_groups(record, scorer_groups)
    return ScorerOverview(
        **record.model_dump(
            include={"name", "score_name", "description", "location", "rate_limit", "suspended", "problem"}
        ),
        score_destination=record.destination,
        interval_seconds=record.interval,
        effective_interval_seconds=find_interval(record.name, ALL_CLUSTERS, record.interval, overrides),
        intervals_in_force=_list_intervals(record, scorer_groups.rows, overrides),
        validity_seconds=record.validity,
        health_status=record.health,
        pairs=states.total,
        states=states,
        ages=compute_spread(
            [max(0.0, now - at) for at in scorer_groups.success_times],
            _AGE_BOUNDS,
        ),
        reasons=reasons[:_MAX_REASONS],
        reasons_total=len(reasons),
        **notice_fields,
    )


def _list_intervals(
    record: ScorerRecord, clusters: Collection[str], overrides: Mapping[str, ScheduleOverride]
) -> list[int]:
    """Return the intervals (seconds) in force on at least one of these clusters, ascending."""
    if not any(override.interval is not None for override in overrides.values()):
        return [record.interval] if clusters else []
    return sorted({find_interval(record.name, cluster, record.interval, overrides) for cluster in clusters})


def make_condition_views(notice: ScorerNotice | None, *, unmet_only: bool = False) -> list[ConditionView]:
    """Return the conditions of a notice. With `unmet_only`, return only conditions that are False."""
    conditions = notice.conditions if notice is not None else ()
    return [
        ConditionView(**condition.model_dump())
        for condition in conditions
        if not unmet_only or condition.status == "False"
    ]


def make_unready_scorer(notice: ScorerNotice) -> UnreadyScorer:
    """Return the view of a DynamicScorer that could not run yet."""
    return UnreadyScorer(name=notice.name, namespace=notice.namespace, conditions=make_condition_views(notice))


def sum_states(counts: Iterable[StateCounts]) -> StateCounts:
    """Return the sum of these counts for each state."""
    sums = dict.fromkeys(StateCounts.model_fields, 0)
    for states in counts:
        for name in sums:
            sums[name] += getattr(states, name)
    return StateCounts(**sums)


def count_states(states: Iterable[Verdict]) -> StateCounts:
    """Return the number of pairs in each state."""
    return StateCounts(**{state.value: number for state, number in Counter(states).items()})


def make_cluster_overview(name: str, states: Mapping[str, Verdict]) -> ClusterOverview:
    """Return the overview of a cluster. `states` are the states of its pairs by scorer."""
    return ClusterOverview(
        name=name, pairs=len(states), states=count_states(states.values()), scorers=dict(sorted(states.items()))
    )


def compute_severity(states: StateCounts) -> tuple[int, ...]:
    """Return a sort key of scorers, which is greater for worse states."""
    return states.failing, states.expired + states.skipped, states.never, states.empty


def make_lag_histogram(stats: Mapping[str, Any], prefix: str) -> list[Bucket]:
    """Return the histogram of lags in seconds, whose counters in `stats` have this prefix."""

    def count(bound: str) -> int:
        return parse_counter("counter", prefix + bound, stats.get(prefix + bound))

    return [
        *(Bucket(up_to=float(bound), count=count(bound)) for bound in keys.LAG_BOUNDS),
        Bucket(up_to=None, count=count("+Inf")),
    ]


def compute_spread(numbers: Iterable[float], bounds: Sequence[float] | None) -> Spread:
    """Return the quantiles and the histogram of these numbers.

    `bounds` are the upper bounds of the bars, ascending. With None, there are ten equal bars from the minimum to the
    maximum.
    """
    sorted_numbers = sorted(numbers)
    size = len(sorted_numbers)
    if not size:
        return Spread(histogram=[Bucket(up_to=bound, count=0) for bound in (*bounds, None)] if bounds else [])
    quantiles = [sorted_numbers[min(size - 1, int(size * part))] for part in (0, 0.5, 0.9, 0.99, 1)]
    minimum, p50, p90, p99, maximum = quantiles if bounds is None else [round(number, 3) for number in quantiles]
    edges = _compute_ten_edges(sorted_numbers[0], sorted_numbers[-1]) if bounds is None else bounds
    cumulative_counts = [0, *(bisect_right(sorted_numbers, edge) for edge in edges)]
    bars = [
        Bucket(up_to=edge, count=high - low)
        for edge, (low, high) in zip(edges, pairwise(cumulative_counts), strict=True)
    ]
    if bounds is not None:
        bars.append(Bucket(up_to=None, count=size - cumulative_counts[-1]))
    return Spread(count=size, minimum=minimum, p50=p50, p90=p90, p99=p99, maximum=maximum, histogram=bars)


def _compute_ten_edges(minimum: float, maximum: float) -> list[float]:
    """Return the upper edges of ten equal bars, or a single edge if the minimum is the maximum."""
    if minimum == maximum:
        return [maximum]
    width = (maximum - minimum) / 10
    return [*(minimum + width * number for number in range(1, 10)), maximum]
