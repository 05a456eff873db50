"""Makes the view of the schedule: entries, what people changed, and when each pair runs next."""

from __future__ import annotations

import time
from collections.abc import Mapping

import redis

from dsf.exporter.views import EntryView, OverrideView, ScheduleList
from dsf.store.registry import Registry
from dsf.store.schedule import Entry, Override, ScheduleStore, effective, scorer_target


def read_schedule(
    client: redis.Redis, cluster: str | None = None, scorer: str | None = None, now: float | None = None
) -> ScheduleList:
    """The schedule, or one cluster's or one scorer's part of it; `now` in unix seconds, by default the clock.

    Raises redis.RedisError when Redis cannot be read, UnknownScorerError and UnknownClusterError for a name that is
    not registered.
    """
    registry = Registry(client)
    if scorer is not None:
        registry.scorer(scorer)
    if cluster is not None:
        registry.cluster(cluster)
    store = ScheduleStore(client)
    entries = [
        entry for entry in store.entries() if cluster in (None, entry.cluster) and scorer in (None, entry.scorer)
    ]
    overrides = store.overrides()
    due = store.due_times(entry.pair for entry in entries)
    at = time.time() if now is None else now
    return ScheduleList(at=at, entries=[entry_view(entry, overrides, due.get(entry.pair), at) for entry in entries])


def entry_view(entry: Entry, overrides: Mapping[str, Override], due: float | None, now: float) -> EntryView:
    """One entry as it really runs at `now`; `due` is its next run. All in unix seconds."""
    runs = effective(entry, overrides, now)
    waits = due is not None and not runs.paused
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


def override_view(target: str, override: Override) -> OverrideView:
    """A person's change, as people see it."""
    return OverrideView(
        target=target,
        interval_seconds=override.interval,
        paused=override.paused,
        paused_until=override.paused_until,
        note=override.note,
        by=override.by,
        at=override.at or None,
    )
