"""Entries and overrides of the schedule, and their combined effect. `dsf.store.schedule` stores them in Redis.

A slot is a time at which a pair runs: `phase + k * interval`, so that runs do not drift. The phase is a hash of the
pair's name, so that 10,000 entries created together run at different times, and every beat computes the same slots.
Times are unix seconds. Phases are whole milliseconds, and intervals are whole seconds.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from dsf import keys
from dsf.api.meta import limit_pause_end
from dsf.api.types import MAX_SECONDS

#: The cluster in the target of an override for all clusters.
ALL_CLUSTERS = "*"
#: Source of a value that no override changes.
FROM_ENTRY = "entry"

PauseEnd = Annotated[float, AfterValidator(limit_pause_end)]


def _limit_seconds(value: object) -> object:
    return min(MAX_SECONDS, value) if isinstance(value, int | float) else value


#: Seconds. A number above the maximum is read as the maximum, so that users see the object and can correct it; an error
#: would make the object unreadable.
_Interval = Annotated[int, BeforeValidator(_limit_seconds)]


class Entry(BaseModel):
    """The schedule of a scorer on a cluster, written by the hub controller."""

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    cluster: str
    scorer: str
    #: Namespace of the DynamicScorer. A scorer of the same name in another namespace does not inherit the books.
    namespace: str = ""
    score_name: str
    interval: _Interval = Field(ge=1)
    #: Fleet-wide limit of this scorer, e.g. `10/s`, or none.
    rate_limit: str | None = None
    #: True for `spec.execution.suspend`, the annotation paused-until, and a cluster or configuration that is briefly
    #: gone.
    suspended: bool = False
    #: Unix seconds at which the suspension ends; None if it does not end by itself.
    suspended_until: PauseEnd | None = None
    #: False if the scoring API is down or the configuration is unusable, which no override can change.
    runnable: bool = True

    @property
    def pair(self) -> str:
        """`<cluster>/<scorer>`."""
        return keys.pair(self.cluster, self.scorer)

    def make_stopped(self) -> Entry:
        """Return the entry as not runnable. The pair keeps its books, and its score expires."""
        return self.model_copy(update={"runnable": False})

    @property
    def is_started(self) -> bool:
        """True if beat sends ticks unless an override pauses the pair."""
        return self.runnable and not self.suspended

    def dump(self) -> str:
        """Return the stored text. It omits defaults (those of version 1), because there is one text per pair."""
        return self.model_dump_json(exclude_defaults=True)


class ScheduleOverride(BaseModel):
    """A user's change to one pair or to a scorer on all clusters. Fields of the pair's own override take precedence."""

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    interval: _Interval | None = Field(default=None, ge=1)
    #: True pauses until `paused_until`, or until a resume; None leaves the pause to other overrides and the entry.
    paused: bool | None = None
    paused_until: PauseEnd | None = None
    note: str = ""
    #: The author, if known.
    by: str = ""
    at: float = 0.0


class EffectiveSchedule(NamedTuple):
    """A pair's effective schedule: its entry with the overrides applied.

    A source is `entry` or the target of the deciding override (`<cluster>/<scorer>` or `*/<scorer>`).
    """

    #: Seconds.
    interval: int
    interval_source: str
    paused: bool
    #: Unix seconds, or None if the pair is not paused, or paused without an end.
    paused_until: float | None
    paused_source: str


def make_scorer_target(scorer: str) -> str:
    """Return the target of an override for a scorer on all clusters."""
    return keys.pair(ALL_CLUSTERS, scorer)


def apply_overrides(entry: Entry, overrides: Mapping[str, ScheduleOverride], now: float) -> EffectiveSchedule:
    """Apply overrides (by target) to an entry. The pair's own override takes precedence over `*/<scorer>`.

    Pauses expire on each level separately: a pair whose own pause has expired is still paused while its scorer is
    paused. An override with `paused: false` resumes a suspended entry, but not an entry that is not runnable.
    """
    interval, interval_source = _find_interval(entry.scorer, entry.cluster, entry.interval, overrides)
    paused, paused_until, paused_source = (
        entry.suspended and not _has_pause_ended(entry.suspended_until, now),
        None,
        FROM_ENTRY,
    )
    if paused:
        paused_until = entry.suspended_until
    for target in (make_scorer_target(entry.scorer), entry.pair):
        override = overrides.get(target)
        if override is None:
            continue
        if override.paused is False:
            paused, paused_until, paused_source = False, None, target
        elif override.paused and not _has_pause_ended(override.paused_until, now):
            paused, paused_until, paused_source = True, override.paused_until, target
    if not entry.runnable:
        paused, paused_until, paused_source = True, None, FROM_ENTRY
    return EffectiveSchedule(interval, interval_source, paused, paused_until, paused_source)


class Pauses(NamedTuple):
    """Pauses of a scorer by overrides."""

    #: Number of paused clusters.
    clusters: int = 0
    #: The cluster with the newest override, and that override.
    cluster: str = ""
    override: ScheduleOverride | None = None
    #: Unix seconds at which the first pause ends; None if no pause ends by itself.
    ends: float | None = None


class Pace(NamedTuple):
    """The intervals of a scorer, and its pauses."""

    #: Seconds, for clusters without their own override.
    interval: int
    #: Number of clusters with a different interval.
    other_interval_clusters: int
    pauses: Pauses = Pauses()


def compute_pace(
    scorer: str, declared_interval: int, clusters: Sequence[str], overrides: Mapping[str, ScheduleOverride], now: float
) -> Pace:
    """Apply overrides (by target) to a scorer's declared interval, for these clusters, at `now`."""
    interval = find_interval(scorer, ALL_CLUSTERS, declared_interval, overrides)
    cluster_intervals = (find_interval(scorer, cluster, declared_interval, overrides) for cluster in clusters)
    return Pace(
        interval,
        sum(seconds != interval for seconds in cluster_intervals),
        _find_pauses(scorer, clusters, overrides, now),
    )


def _find_pauses(scorer: str, clusters: Sequence[str], overrides: Mapping[str, ScheduleOverride], now: float) -> Pauses:
    pausing_overrides = {name: override for name, override in overrides.items() if override.paused is not None}
    pausing_overrides = {
        name: override
        for name, override in pausing_overrides.items()
        if not _has_pause_ended(override.paused_until, now)
    }
    fleet_override = pausing_overrides.get(make_scorer_target(scorer))
    override_by_cluster = (
        {cluster: pausing_overrides.get(keys.pair(cluster, scorer), fleet_override) for cluster in clusters}
        if pausing_overrides
        else {}
    )
    pause_by_cluster = {
        cluster: override
        for cluster, override in override_by_cluster.items()
        if override is not None and override.paused
    }
    if not pause_by_cluster:
        return Pauses()
    newest_cluster = max(pause_by_cluster, key=lambda cluster: pause_by_cluster[cluster].at)
    first_end = min(
        (override.paused_until for override in pause_by_cluster.values() if override.paused_until is not None),
        default=None,
    )
    return Pauses(len(pause_by_cluster), newest_cluster, pause_by_cluster[newest_cluster], first_end)


def list_targets(scorer: str, cluster: str) -> tuple[str, str]:
    """Return the targets of overrides that apply to a pair. The first one takes precedence."""
    return keys.pair(cluster, scorer), make_scorer_target(scorer)


def find_interval(scorer: str, cluster: str, declared_interval: int, overrides: Mapping[str, ScheduleOverride]) -> int:
    """Return the interval of a scorer on a cluster in seconds.

    The cluster's override takes precedence over the override of `ALL_CLUSTERS`, and both over `declared_interval`.
    """
    return _find_interval(scorer, cluster, declared_interval, overrides)[0]


def _find_interval(
    scorer: str, cluster: str, declared_interval: int, overrides: Mapping[str, ScheduleOverride]
) -> tuple[int, str]:
    for target in list_targets(scorer, cluster):
        override = overrides.get(target)
        if override is not None and override.interval is not None:
            return override.interval, target
    return declared_interval, FROM_ENTRY


def compute_pause(entry: Entry, overrides: Mapping[str, ScheduleOverride], now: float) -> EffectiveSchedule:
    """Return the effective schedule as if the pair could run, so that `paused` means a pause by a user or the scorer.

    A pair whose scoring API is down is not paused. Beat skips it with that reason.
    """
    return apply_overrides(entry if entry.runnable else entry.model_copy(update={"runnable": True}), overrides, now)


def _has_pause_ended(paused_until: float | None, now: float) -> bool:
    return paused_until is not None and paused_until <= now


#: Maximum seconds between a slot and a due time at that slot, because due times are moved by microseconds to mark a
#: change.
SLOT_TOLERANCE = 0.001
#: Maximum difference in seconds between the clocks of two hosts. A pair that is due must be due by both clocks.
CLOCK_SKEW = 60.0


def _compute_tick_time(pair: str, interval: int, at: float, ahead: int) -> float:
    """Return the slot that is `ahead` slots after the last one that is not after `at`."""
    # Whole milliseconds make a slot the same float in every computation.
    length = interval * 1000
    digest = hashlib.blake2b(pair.encode(), digest_size=8).digest()
    phase = int.from_bytes(digest) % length
    number = (math.floor((at + SLOT_TOLERANCE) * 1000) - phase) // length + ahead
    return (number * length + phase) / 1000


def compute_current_tick_time(pair: str, interval: int, at: float) -> float:
    """Return the last slot that is not after `at`."""
    return _compute_tick_time(pair, interval, at, 0)


def compute_next_tick_time(pair: str, interval: int, at: float) -> float:
    """Return the first slot after `at`, which is at most one interval later."""
    return _compute_tick_time(pair, interval, at, 1)


def is_slot(pair: str, interval: int, at: float) -> bool:
    """Return True if `at` is a slot of this pair."""
    return abs(compute_current_tick_time(pair, interval, at) - at) <= SLOT_TOLERANCE


def compute_scheduled_time(pair: str, interval: int, due_at: float, now: float) -> float:
    """Return the scheduled time of a run that was due at `due_at` and is sent at `now`.

    Missed slots are not caught up: if there are any, the run gets the time of the last slot before `now`.
    """
    return max(due_at, compute_current_tick_time(pair, interval, now))


def compute_next_due(pair: str, interval: int, due_at: float, now: float) -> float:
    """Return the next due time of a pair that was due at `due_at` and runs at `now`.

    After a run on a slot, the due time is the next slot. After a run between slots (a first run, a resume, or a
    shortened interval), it is the first slot at least half an interval later, to keep runs apart.
    """
    if is_slot(pair, interval, due_at):
        return compute_next_tick_time(pair, interval, max(due_at, now))
    # The subtracted tolerance includes a slot exactly half an interval later.
    return compute_next_tick_time(pair, interval, max(due_at, now) + interval / 2 - 2 * SLOT_TOLERANCE)
