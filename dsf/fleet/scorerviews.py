"""States of scorers for `dsf status` and the JSON API."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import nlargest

from dsf.api.validity import has_expired
from dsf.fleet.groups import Groups
from dsf.fleet.overviews import ReasonGroup
from dsf.fleet.reasongroups import reason_groups
from dsf.fleet.rows import age_of, skips_view
from dsf.fleet.snapshot import SnapshotRow
from dsf.fleet.verdict import Verdict
from dsf.fleet.views import ClusterCounts, FailureView, IdleClusters, RemarkView, ScorerView
from dsf.store.entries import ScheduleOverride, interval_in_force
from dsf.store.pairs import Pairs
from dsf.store.registry import ScorerRecord
from dsf.store.ticks import INACTIVE, PAUSED


def scorer_views(
    pairs: Pairs,
    records: Sequence[ScorerRecord],
    groups: Mapping[str, Groups],
    overrides: Mapping[str, ScheduleOverride],
    now: float,
) -> list[ScorerView]:
    """One view per record, in their order; `groups` by scorer, `overrides` by target. Raises redis.RedisError."""
    return [_scorer_view(pairs, record, groups.get(record.name, Groups({}, now)), overrides, now) for record in records]


def _scorer_view(
    pairs: Pairs, record: ScorerRecord, groups: Groups, overrides: Mapping[str, ScheduleOverride], now: float
) -> ScorerView:
    judged, rows = groups.states, groups.rows.values()
    sizes = Counter({state: len(some) for state, some in judged.items()})
    # Their scores may be used, although they get no ticks.
    usable = sum(
        row.last_success is not None and not has_expired(row.valid_until, now)
        for row in judged.get(Verdict.SKIPPED, ())
    )
    last_success = next(iter(groups.successes), None)
    return ScorerView(
        name=record.name,
        score_name=record.score_name,
        description=record.description,
        location=record.location,
        score_destination=record.destination,
        interval_seconds=record.interval,
        intervals_in_force=_intervals(record, rows, overrides),
        validity_seconds=record.validity,
        rate_limit=record.rate_limit,
        suspended=record.suspended,
        health_status=record.health,
        problem=record.problem,
        clusters=ClusterCounts(
            desired=len(rows),
            succeeding=sizes[Verdict.OK] + usable,
            failing=sizes[Verdict.FAILING],
            empty=sizes[Verdict.EMPTY],
            expired=sizes[Verdict.EXPIRED],
            waiting=sizes[Verdict.NEVER],
            paused=sizes[Verdict.PAUSED],
            skipped=sizes[Verdict.SKIPPED] - usable,
        ),
        last_success=last_success,
        age_seconds=age_of(last_success, now),
        failures=_failures(judged.get(Verdict.FAILING, ())),
        remarks=_remarks(reason_groups(record, groups), now),
        idle=_idle(pairs, record, rows, now),
    )


def _intervals(
    record: ScorerRecord, rows: Collection[SnapshotRow], overrides: Mapping[str, ScheduleOverride]
) -> list[int]:
    """Those in force on some cluster, ascending."""
    if not any(override.interval is not None for override in overrides.values()):
        return [record.interval] if rows else []
    return sorted({interval_in_force(record.name, row.cluster, record.interval, overrides) for row in rows})


def _failures(rows: Iterable[SnapshotRow]) -> list[FailureView]:
    """The newest ones."""
    failures = ((row.cluster, why) for row in rows if (why := row.why(Verdict.FAILING)) is not None and why.reason)
    return [
        FailureView(cluster=cluster, run_id=why.run, **why.model_dump(exclude={"run"}))
        for cluster, why in nlargest(10, failures, key=lambda failure: failure[1].at)
    ]


def remark_order(remark: RemarkView) -> tuple[bool, int, str]:
    """Key by which remarks are sorted."""
    return remark.state is not Verdict.EMPTY, -remark.clusters, remark.reason


def _remarks(groups: Iterable[ReasonGroup], now: float) -> list[RemarkView]:
    remarks = [
        RemarkView(**{name: getattr(group, name) for name in RemarkView.model_fields} | {"at": group.at or now})
        for group in groups
        if group.state in (Verdict.EMPTY, Verdict.OK)
    ]
    return sorted(remarks, key=remark_order)


def _idle(pairs: Pairs, record: ScorerRecord, rows: Iterable[SnapshotRow], now: float) -> list[IdleClusters]:
    """Why clusters get no ticks: one per reason, of the cluster that waits longest."""
    by_reason: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for row in rows:
        skips = row.skips
        if skips is None or (skips.reason in (PAUSED, INACTIVE) and record.suspended):
            continue
        if row.is_skipped or has_expired(row.valid_until, now):
            by_reason[skips.reason].append((skips.since, row.cluster))
    # Read again: the numbers of ticks of the rows in memory are older.
    longest = pairs.rows((min(some)[1], record.name) for some in by_reason.values())
    views = []
    for some, state in zip(by_reason.values(), longest, strict=True):
        if (view := skips_view(state, record)) is not None:
            views.append(
                IdleClusters(**{name: getattr(view, name) for name in type(view).model_fields}, clusters=len(some))
            )
    return sorted(views, key=lambda view: (-view.clusters, view.reason))
