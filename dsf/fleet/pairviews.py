"""Builds the views of a pair: table row, details, score, and schedule entry. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from dsf import keys
from dsf.api.score import has_expired, to_score_value
from dsf.api.scorerule import HoldRule, compute_publish_time, find_item_owners
from dsf.fleet.verdict import Verdict, compute_verdict
from dsf.fleet.views import (
    Books,
    CycleView,
    EntryView,
    FailureView,
    HoldView,
    InputView,
    ItemView,
    OverrideView,
    PairDetail,
    PairRow,
    ScoreItem,
    ScoreResult,
    ScoreView,
    SkipsView,
)
from dsf.process.tracing import make_trace_id
from dsf.store.entries import Entry, ScheduleOverride, compute_pause, make_scorer_target
from dsf.store.history import HistoryEntry
from dsf.store.notices import ConfigRead
from dsf.store.pairs import OUTCOMES, PairFailure, PairScore, PairState
from dsf.store.registry import ScorerRecord
from dsf.store.ticks import INACTIVE, Skips

#: Maximum items in the details of a pair.
MAX_ITEMS: Final = 1000


def find_config_read_time(read: ConfigRead | None) -> datetime | None:
    """Return the time at which a /config was last read successfully; None before the first time."""
    return datetime.fromtimestamp(read.at, UTC) if read is not None and read.at else None


def make_pair_row(
    pair: PairState, state: Verdict, record: ScorerRecord | None, due: float | None, now: float
) -> PairRow:
    """Return a pair in this state as a table row. `due` is its next run, and `now` the time (unix seconds)."""
    return PairRow(**_make_row_fields(pair, state, record, due, now))


def make_pair_detail(
    pair: PairState,
    *,
    record: ScorerRecord,
    entry: Entry | None,
    overrides: Mapping[str, ScheduleOverride],
    due: float | None,
    history: Iterable[HistoryEntry],
    now: float,
    cluster_problem: str,
    inputs: list[InputView],
) -> PairDetail:
    """Return the details of a pair at `now` (unix seconds).

    `entry` is None if the pair does not run. `overrides` are those of the schedule by target, `due` is the next run
    (unix seconds), and `inputs` are the scores that a composite combines.
    """
    schedule = compute_pause(entry, overrides, now) if entry is not None else None
    state = compute_verdict(pair, now, is_paused=schedule is not None and schedule.paused)
    pair_overrides = [
        overrides[target]
        for target in (keys.pair(pair.cluster, pair.scorer), make_scorer_target(pair.scorer))
        if target in overrides
    ]
    score = pair.score
    valid_score = score if score is not None and not has_expired(pair.valid_until, now) else None
    return PairDetail(
        **_make_row_fields(pair, state, record, due, now),
        score_name=record.score_name,
        run_id=score.run if score else None,
        interval_seconds=schedule.interval if schedule is not None else record.interval,
        paused_until=schedule.paused_until if schedule is not None and schedule.paused else None,
        note=next((override.note for override in pair_overrides if override.note), ""),
        unwritten=pair.unwritten.message if pair.unwritten is not None else "",
        cluster_problem=cluster_problem,
        hold=make_hold_view(record),
        withheld_count=pair.held,
        inputs=inputs,
        books=make_books_view(pair),
        score_items=make_item_views(valid_score, record, pair.cluster) if valid_score is not None else [],
        cycles=[make_cycle_view(pair.cluster, record.name, cycle) for cycle in history],
    )


def make_score_view(
    pair: PairState, records: dict[str, ScorerRecord], now: float, *, is_paused: bool = False
) -> ScoreView:
    """Return the view of a pair's newest score at `now` (unix seconds)."""
    state = compute_verdict(pair, now)
    score = pair.score
    record = records.get(pair.scorer)
    is_expired = score is not None and has_expired(pair.valid_until, now)
    valid_score = None if is_expired else score
    registered_score_name = record.score_name if record else None
    return ScoreView(
        **_make_pair_fields(pair, Verdict.PAUSED if is_paused else state, record, now),
        score_name=registered_score_name or (score.score_name if score else ""),
        run_id=score.run if score else None,
        at=score.at if score else None,
        expired=is_expired,
        fresh=valid_score is not None and state is not Verdict.FAILING,
        empty=state is Verdict.EMPTY,
        hold=make_hold_view(record),
        items=[
            ScoreItem(name=name, value=value, **_make_held_fields(valid_score, name, record.hold if record else None))
            for name, value in valid_score.items
        ]
        if valid_score
        else [],
        results=[ScoreResult(metric=labels, score=value) for labels, value in valid_score.results]
        if valid_score
        else [],
    )


def make_item_views(score: PairScore, record: ScorerRecord, cluster: str) -> list[ItemView]:
    """Return at most `MAX_ITEMS` items of a score with their results.

    The last one of several results with the same item name counts.
    """
    if not score.items:
        # Return the results of a score without items, which is only exported as a metric.
        return [
            ItemView(name=score.score_name, value=None, scored=value, labels=labels)
            for labels, value in score.results[:MAX_ITEMS]
        ]
    owners = find_item_owners(score.results, record.model_copy(update={"score_name": score.score_name}), cluster)
    items = []
    for name, value in score.items[:MAX_ITEMS]:
        labels, raw_score = owners.get(name, ({}, None))
        if raw_score is not None and to_score_value(raw_score)[0] != value:
            # The result belongs to another item, because the format of item names has changed since the cycle.
            labels, raw_score = {}, None
        is_clamped = raw_score is not None and to_score_value(raw_score)[1]
        held_fields = _make_held_fields(score, name, record.hold)
        items.append(
            ItemView(name=name, value=value, scored=raw_score, clamped=is_clamped, labels=dict(labels), **held_fields)
        )
    return items


def make_hold_view(record: ScorerRecord | None) -> HoldView | None:
    """Return the view of a scorer's hold; None for a scorer without a hold."""
    return HoldView(**record.hold.model_dump()) if record is not None and record.hold is not None else None


def _make_held_fields(score: PairScore, item: str, rule: HoldRule | None) -> dict[str, Any]:
    """Return the fields of HeldView for an item; empty if no value is withheld."""
    held_value = score.held.get(item)
    if held_value is None:
        return {}
    # Without a rule there is no publish time, because the next result is published immediately.
    publish_time = (
        compute_publish_time(held_value, min_change=rule.min_change, for_seconds=rule.for_seconds)
        if rule is not None
        else None
    )
    held_since = held_value.differs_since if publish_time is not None else None
    return {"waiting": held_value.value, "waiting_since": held_since, "waiting_until": publish_time}


def make_entry_view(
    entry: Entry, overrides: Mapping[str, ScheduleOverride], due: float | None, now: float
) -> EntryView:
    """Return an entry with the overrides in force at `now`. `due` is its next run. Times are unix seconds."""
    schedule = compute_pause(entry, overrides, now)
    will_run = due is not None and entry.runnable and not schedule.paused
    targets = (make_scorer_target(entry.scorer), entry.pair)
    return EntryView(
        cluster=entry.cluster,
        scorer=entry.scorer,
        score_name=entry.score_name,
        interval_seconds=schedule.interval,
        entry_interval_seconds=entry.interval,
        interval_source=schedule.interval_source,
        rate_limit=entry.rate_limit,
        suspended=entry.suspended,
        paused=schedule.paused,
        paused_until=schedule.paused_until,
        paused_source=schedule.paused_source if schedule.paused else None,
        next_run=due if will_run else None,
        lag_seconds=round(max(0.0, now - due), 3) if will_run and due is not None else 0.0,
        overrides=[make_override_view(target, overrides[target]) for target in targets if target in overrides],
    )


def make_override_view(target: str, override: ScheduleOverride) -> OverrideView:
    """Return the view of the override of this target."""
    return OverrideView(
        target=target,
        interval_seconds=override.interval,
        at=override.at or None,
        **override.model_dump(include={"paused", "paused_until", "note", "by"}),
    )


def make_books_view(pair: PairState) -> Books:
    """Return the counters of a pair's cycles by outcome."""
    counts = {name: pair.count(name) for name in ("scheduled", *OUTCOMES)}
    return Books(**counts, open=pair.open, skipped_by_reason=pair.read_skip_counts())


def make_cycle_view(cluster: str, scorer: str, entry: HistoryEntry) -> CycleView:
    """Return the view of a past cycle of a pair."""
    trace = make_trace_id(keys.run_member(cluster, scorer, entry.run))
    return CycleView(**entry.model_dump(exclude={"run"}), run_id=entry.run, trace=trace)


def _make_failure_view(cluster: str, failure: PairFailure | None) -> FailureView | None:
    if failure is None:
        return None
    return FailureView(cluster=cluster, run_id=failure.run, **failure.model_dump(exclude={"run"}))


def _make_skips_view(skips: Skips | None, record: ScorerRecord | None) -> SkipsView | None:
    if skips is None:
        return None
    message = skips.explain(record.rate_limit, record.problem) if record else skips.explain(None)
    return SkipsView(
        cluster=skips.cluster, reason=skips.reason, ticks=skips.ticks, since=skips.first_at, message=message
    )


def compute_age(last_success: float | None, now: float) -> float | None:
    """Return the seconds since `last_success` (unix seconds); 0 if it is in the future, and None for None."""
    return None if last_success is None else round(max(0.0, now - last_success), 3)


def _make_row_fields(
    pair: PairState, state: Verdict, record: ScorerRecord | None, due: float | None, now: float
) -> dict[str, Any]:
    """Return the fields of PairRow."""
    has_valid_score = pair.last_success is not None and not has_expired(pair.valid_until, now)
    will_run = state is not Verdict.PAUSED and not (pair.skips and pair.skips.reason == INACTIVE)
    return {
        **_make_pair_fields(pair, state, record, now),
        "value": pair.value if has_valid_score else None,
        "items": pair.items if has_valid_score else None,
        "next_run": due if will_run else None,
    }


def _make_pair_fields(pair: PairState, state: Verdict, record: ScorerRecord | None, now: float) -> dict[str, Any]:
    """Return the fields of PairView."""
    return {
        "cluster": pair.cluster,
        "scorer": pair.scorer,
        "state": state,
        "last_success": pair.last_success,
        "age_seconds": compute_age(pair.last_success, now),
        "valid_until": pair.valid_until or None,
        "failing": pair.failing or (pair.expired if pair.current_failure is not None else 0),
        "failure": _make_failure_view(pair.cluster, pair.current_failure),
        "remark": _make_failure_view(pair.cluster, pair.remark),
        "skips": _make_skips_view(pair.skips, record),
    }
