"""Views and changes of the schedule: entries, overrides, and next runs."""

from __future__ import annotations

from collections.abc import Mapping

from dsf import keys
from dsf.fleet.views import EntryView, OverrideView
from dsf.store.entries import pause
from dsf.store.schedule import Entry, ScheduleOverride, ScheduleStore, scorer_target


def entry_view(entry: Entry, overrides: Mapping[str, ScheduleOverride], due: float | None, now: float) -> EntryView:
    """One entry with the overrides in force at `now`; `due` is its next run. Times are unix seconds."""
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
        paused=override.paused,
        paused_until=override.paused_until,
        note=override.note,
        by=override.by,
        at=override.at or None,
    )


def target_of(scorer: str, cluster: str | None) -> str:
    """Target of an override: the scorer on one cluster, or on all (None)."""
    return scorer_target(scorer) if cluster is None else keys.pair(cluster, scorer)


def reset(store: ScheduleStore, scorer: str, cluster: str | None) -> None:
    """Remove overrides of a scorer on one cluster, or on all. Raises redis.RedisError."""
    if cluster is None:
        # Per cluster first: an interrupted reset leaves only overrides that users set.
        for target in sorted({*store.targets(scorer)} - {scorer_target(scorer)}):
            store.reset(target)
    store.reset(target_of(scorer, cluster))
