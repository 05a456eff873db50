"""A pair as a table row, in detail, its score, and its entry of the schedule. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from dsf import keys
from dsf.api.score import has_expired, to_score_value
from dsf.api.scorerule import HoldRule, compute_publish_time, find_item_owners
from dsf.fleet.verdict import Verdict, verdict
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
from dsf.process.tracing import trace_id
from dsf.store.entries import Entry, ScheduleOverride, pause, scorer_target
from dsf.store.history import HistoryEntry
from dsf.store.notices import ConfigRead
from dsf.store.pairs import OUTCOMES, PairFailure, PairScore, PairState
from dsf.store.registry import ScorerRecord
from dsf.store.ticks import INACTIVE, Skips

#: Most shown items of a pair.
MAX_ITEMS: Final = 1000


def read_at(read: ConfigRead | None) -> datetime | None:
    """Time of the last valid response of a /config."""
    return datetime.fromtimestamp(read.at, UTC) if read is not None and read.at else None


def pair_row(state: PairState, judged: Verdict, record: ScorerRecord | None, due: float | None, now: float) -> PairRow:
    """Return a pair as a table row; `judged` is its state, `due` its next run (unix seconds)."""
    return PairRow(**_row(state, judged, record, due, now))


def pair_detail(
    state: PairState,
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
    """Return a pair; `entry` is None if it does not run, and `inputs` are the scores that it combines."""
    runs = pause(entry, overrides, now) if entry is not None else None
    judged = verdict(state, now, is_paused=runs is not None and runs.paused)
    own_overrides = [
        overrides[target]
        for target in (keys.pair(state.cluster, state.scorer), scorer_target(state.scorer))
        if target in overrides
    ]
    score = state.score
    usable = score if score is not None and not has_expired(state.valid_until, now) else None
    return PairDetail(
        **_row(state, judged, record, due, now),
        score_name=record.score_name,
        run_id=score.run if score else None,
        interval_seconds=runs.interval if runs is not None else record.interval,
        paused_until=runs.paused_until if runs is not None and runs.paused else None,
        note=next((override.note for override in own_overrides if override.note), ""),
        unwritten=state.unwritten.message if state.unwritten is not None else "",
        cluster_problem=cluster_problem,
        hold=hold_view(record),
        held=state.held,
        inputs=inputs,
        books=books_of(state),
        score_items=score_items(usable, record, state.cluster) if usable is not None else [],
        cycles=[cycle_view(state.cluster, record.name, cycle) for cycle in history],
    )


def score_view(state: PairState, records: dict[str, ScorerRecord], now: float, *, is_paused: bool = False) -> ScoreView:
    """View of one pair's newest score at `now` (unix seconds)."""
    verdict_now = verdict(state, now)
    score = state.score
    record = records.get(state.scorer)
    expired = score is not None and has_expired(state.valid_until, now)
    usable = None if expired else score
    registered_score_name = record.score_name if record else None
    return ScoreView(
        **_pair(state, Verdict.PAUSED if is_paused else verdict_now, record, now),
        score_name=registered_score_name or (score.score_name if score else ""),
        run_id=score.run if score else None,
        at=score.at if score else None,
        expired=expired,
        fresh=usable is not None and verdict_now is not Verdict.FAILING,
        empty=verdict_now is Verdict.EMPTY,
        hold=hold_view(record),
        items=[
            ScoreItem(name=name, value=value, **waiting(usable, name, record.hold if record else None))
            for name, value in usable.items
        ]
        if usable
        else [],
        results=[ScoreResult(metric=labels, score=value) for labels, value in usable.results] if usable else [],
    )


def score_items(score: PairScore, record: ScorerRecord, cluster: str) -> list[ItemView]:
    """Return the items of a score, each with its result; of two results with one name the later one."""
    if not score.items:
        # The score is only exported as a metric.
        return [
            ItemView(name=score.score_name, value=None, scored=value, labels=labels)
            for labels, value in score.results[:MAX_ITEMS]
        ]
    owners = find_item_owners(score.results, record.model_copy(update={"score_name": score.score_name}), cluster)
    items = []
    for name, value in score.items[:MAX_ITEMS]:
        labels, scored = owners.get(name, ({}, None))
        if scored is not None and to_score_value(scored)[0] != value:
            # The format has changed since.
            labels, scored = {}, None
        clamped = scored is not None and to_score_value(scored)[1]
        waits = waiting(score, name, record.hold)
        items.append(ItemView(name=name, value=value, scored=scored, clamped=clamped, labels=dict(labels), **waits))
    return items


def hold_view(record: ScorerRecord | None) -> HoldView | None:
    """Return the hold of a scorer."""
    return HoldView(**record.hold.model_dump()) if record is not None and record.hold is not None else None


def waiting(score: PairScore, item: str, rule: HoldRule | None) -> dict[str, Any]:
    """Return what is held back of an item: the fields of HeldView."""
    waiting_value = score.held.get(item)
    if waiting_value is None:
        return {}
    # Without a rule the next result ends it.
    until = (
        compute_publish_time(waiting_value, min_change=rule.min_change, for_seconds=rule.for_seconds)
        if rule is not None
        else None
    )
    since = waiting_value.since if until is not None else None
    return {"waiting": waiting_value.value, "waiting_since": since, "waiting_until": until}


def entry_view(entry: Entry, overrides: Mapping[str, ScheduleOverride], due: float | None, now: float) -> EntryView:
    """Return an entry with the overrides in force at `now`; `due` is its next run. Times are unix seconds."""
    runs = pause(entry, overrides, now)
    waits = due is not None and entry.runnable and not runs.paused
    targets = (scorer_target(entry.scorer), entry.pair)
    return EntryView(
        cluster=entry.cluster,
        scorer=entry.scorer,
        score_name=entry.score_name,
        interval_seconds=runs.interval,
        entry_interval_seconds=entry.interval,
        interval_source=runs.interval_source,
        rate_limit=entry.rate_limit,
        suspended=entry.suspended,
        paused=runs.paused,
        paused_until=runs.paused_until,
        paused_source=runs.paused_source if runs.paused else None,
        next_run=due if waits else None,
        lag_seconds=round(max(0.0, now - due), 3) if waits and due is not None else 0.0,
        overrides=[override_view(target, overrides[target]) for target in targets if target in overrides],
    )


def override_view(target: str, override: ScheduleOverride) -> OverrideView:
    """View of an override."""
    return OverrideView(
        target=target,
        interval_seconds=override.interval,
        at=override.at or None,
        **override.model_dump(include={"paused", "paused_until", "note", "by"}),
    )


def books_of(state: PairState) -> Books:
    """Counters of its cycles by outcome."""
    counts = {name: state.count(name) for name in ("scheduled", *OUTCOMES)}
    return Books(**counts, open=state.open, skipped_by_reason=state.skipped())


def cycle_view(cluster: str, scorer: str, entry: HistoryEntry) -> CycleView:
    """Return a past cycle of a pair."""
    trace = trace_id(keys.run_member(cluster, scorer, entry.run))
    return CycleView(**entry.model_dump(exclude={"run"}), run_id=entry.run, trace=trace)


def _failure(cluster: str, failure: PairFailure | None) -> FailureView | None:
    if failure is None:
        return None
    return FailureView(cluster=cluster, run_id=failure.run, **failure.model_dump(exclude={"run"}))


def _skips(skips: Skips | None, record: ScorerRecord | None) -> SkipsView | None:
    if skips is None:
        return None
    message = skips.why(record.rate_limit, record.problem) if record else skips.why(None)
    return SkipsView(cluster=skips.cluster, reason=skips.reason, ticks=skips.ticks, since=skips.since, message=message)


def age_of(last_success: float | None, now: float) -> float | None:
    """Return seconds since then; never negative, even for a time that is to come."""
    return None if last_success is None else round(max(0.0, now - last_success), 3)


def _row(
    state: PairState, judged: Verdict, record: ScorerRecord | None, due: float | None, now: float
) -> dict[str, Any]:
    """Return the fields of PairRow."""
    is_usable = state.last_success is not None and not has_expired(state.valid_until, now)
    waits = judged is not Verdict.PAUSED and not (state.skips and state.skips.reason == INACTIVE)
    return {
        **_pair(state, judged, record, now),
        "value": state.value if is_usable else None,
        "items": state.items if is_usable else None,
        "next_run": due if waits else None,
    }


def _pair(state: PairState, judged: Verdict, record: ScorerRecord | None, now: float) -> dict[str, Any]:
    """Return the fields of PairView."""
    return {
        "cluster": state.cluster,
        "scorer": state.scorer,
        "state": judged,
        "last_success": state.last_success,
        "age_seconds": age_of(state.last_success, now),
        "valid_until": state.valid_until or None,
        "failing": state.failing or (state.expired if state.trouble is not None else 0),
        "failure": _failure(state.cluster, state.trouble),
        "remark": _failure(state.cluster, state.remark),
        "skips": _skips(state.skips, record),
    }
