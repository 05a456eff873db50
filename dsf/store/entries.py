"""Entries and overrides of the schedule, and their combined effect. `dsf.store.schedule` keeps them in Redis.

A slot is a time at which a pair runs. A pair has a phase within its interval, made from its name, so that 10,000
entries created together do not fire together and every beat computes the same slots. A slot is
`phase + k * interval`: runs do not drift. Times are unix seconds, phases have whole milliseconds, intervals whole
seconds.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from dsf import keys
from dsf.api.meta import pause_end
from dsf.api.types import MAX_SECONDS

#: Stands for every cluster in the target of an override.
ALL_CLUSTERS = "*"
#: Source of a value that no override changes.
FROM_ENTRY = "entry"

PauseEnd = Annotated[float, AfterValidator(pause_end)]


def _at_most(value: object) -> object:
    return min(MAX_SECONDS, value) if isinstance(value, int | float) else value


#: A larger number is the largest: users must be able to see and undo what is out of bounds in Redis.
_Interval = Annotated[int, BeforeValidator(_at_most)]


class Entry(BaseModel):
    """A scorer on a cluster, as scheduled by the hub controller."""

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    cluster: str
    scorer: str
    #: Namespace of the DynamicScorer: a scorer of that name in another namespace does not inherit this entry's books.
    namespace: str = ""
    score_name: str
    interval: _Interval = Field(ge=1)
    #: Fleet-wide limit of this scorer, e.g. `10/s`, or none.
    rate_limit: str | None = None
    #: `spec.execution.suspend`, the annotation paused-until, or its cluster or the configuration is gone for a moment.
    suspended: bool = False
    #: Unix seconds until which it is suspended; None without an end.
    suspended_until: PauseEnd | None = None
    #: False: it cannot run now, regardless of overrides: its scoring API is down or its configuration is unusable.
    runnable: bool = True

    @property
    def pair(self) -> str:
        """`<cluster>/<scorer>`."""
        return keys.pair(self.cluster, self.scorer)

    def stopped(self) -> Entry:
        """The entry of a pair that cannot run now, whatever overrides say; its score expires, its books stay."""
        return self.model_copy(update={"runnable": False})

    @property
    def is_started(self) -> bool:
        """True if the hub lets it run: overrides apart, ticks are sent."""
        return self.runnable and not self.suspended

    def dump(self) -> str:
        """The stored text: one per pair, so only deviations from the defaults, which are those of version 1."""
        return self.model_dump_json(exclude_defaults=True)


class ScheduleOverride(BaseModel):
    """A user's change to one pair, or to a scorer on all clusters. The pair's own wins, field by field."""

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    interval: _Interval | None = Field(default=None, ge=1)
    #: The pause. None: not set. True: paused until `paused_until`, or until resumed.
    paused: bool | None = None
    paused_until: PauseEnd | None = None
    note: str = ""
    #: Its author, if known.
    by: str = ""
    at: float = 0.0


class Effective(NamedTuple):
    """A pair's effective schedule: its entry with the overrides applied.

    A source is `entry` or the target of the deciding override (`<cluster>/<scorer>` or `*/<scorer>`).
    """

    #: Seconds.
    interval: int
    interval_source: str
    paused: bool
    #: Unix seconds; None without an end, and for a pair that is not paused.
    paused_until: float | None
    paused_source: str


def scorer_target(scorer: str) -> str:
    """The target of an override for a scorer on all clusters."""
    return keys.pair(ALL_CLUSTERS, scorer)


def effective(entry: Entry, overrides: Mapping[str, ScheduleOverride], now: float) -> Effective:
    """Apply overrides (by target) to an entry: the pair's own wins over `*/<scorer>`, which wins over the entry.

    An expired pause has no effect, on each level separately: a pair whose own pause is over is still paused while its
    scorer is. An override's `paused: false` beats a suspended entry unless that cannot run.
    """
    interval, interval_source = _interval(entry.scorer, entry.cluster, entry.interval, overrides)
    paused, until, paused_source = entry.suspended and not _over(entry.suspended_until, now), None, FROM_ENTRY
    if paused:
        until = entry.suspended_until
    for target in (scorer_target(entry.scorer), entry.pair):
        override = overrides.get(target)
        if override is None:
            continue
        if override.paused is False:
            paused, until, paused_source = False, None, target
        elif override.paused and not _over(override.paused_until, now):
            paused, until, paused_source = True, override.paused_until, target
    if not entry.runnable:
        paused, until, paused_source = True, None, FROM_ENTRY
    return Effective(interval, interval_source, paused, until, paused_source)


class Pauses(NamedTuple):
    """Manual pauses of a scorer."""

    #: Number of paused clusters.
    clusters: int = 0
    #: The cluster with the newest override, and that override.
    cluster: str = ""
    override: ScheduleOverride | None = None
    #: Unix seconds at which the first pause ends; None if none ends by itself.
    ends: float | None = None


class Pace(NamedTuple):
    """Interval of a scorer."""

    #: Seconds; in force without a cluster's own override.
    interval: int
    #: Number of clusters with another one.
    elsewhere: int
    pauses: Pauses = Pauses()


def pace(
    scorer: str, declared: int, clusters: Sequence[str], overrides: Mapping[str, ScheduleOverride], now: float
) -> Pace:
    """Apply overrides (by target) to a scorer's declared interval, for these clusters, at `now`."""
    interval = interval_in_force(scorer, ALL_CLUSTERS, declared, overrides)
    cluster_intervals = (interval_in_force(scorer, cluster, declared, overrides) for cluster in clusters)
    return Pace(
        interval, sum(seconds != interval for seconds in cluster_intervals), _pauses(scorer, clusters, overrides, now)
    )


def _pauses(scorer: str, clusters: Sequence[str], overrides: Mapping[str, ScheduleOverride], now: float) -> Pauses:
    in_force = {name: override for name, override in overrides.items() if override.paused is not None}
    in_force = {name: override for name, override in in_force.items() if not _over(override.paused_until, now)}
    everywhere = in_force.get(scorer_target(scorer))
    by_cluster = (
        {cluster: in_force.get(keys.pair(cluster, scorer), everywhere) for cluster in clusters} if in_force else {}
    )
    paused = {cluster: override for cluster, override in by_cluster.items() if override is not None and override.paused}
    if not paused:
        return Pauses()
    newest = max(paused, key=lambda cluster: paused[cluster].at)
    ends = min(
        (override.paused_until for override in paused.values() if override.paused_until is not None), default=None
    )
    return Pauses(len(paused), newest, paused[newest], ends)


def targets_of(scorer: str, cluster: str) -> tuple[str, str]:
    """The targets of overrides that apply to a pair, the first one before the other."""
    return keys.pair(cluster, scorer), scorer_target(scorer)


def interval_in_force(scorer: str, cluster: str, declared: int, overrides: Mapping[str, ScheduleOverride]) -> int:
    """The interval of a scorer on a cluster; that of `ALL_CLUSTERS` applies without a cluster's own."""
    return _interval(scorer, cluster, declared, overrides)[0]


def _interval(scorer: str, cluster: str, declared: int, overrides: Mapping[str, ScheduleOverride]) -> tuple[int, str]:
    for target in targets_of(scorer, cluster):
        override = overrides.get(target)
        if override is not None and override.interval is not None:
            return override.interval, target
    return declared, FROM_ENTRY


def pause(entry: Entry, overrides: Mapping[str, ScheduleOverride], now: float) -> Effective:
    """The pause in force, by a person or the DynamicScorer, if its result is `paused`. A pair that cannot run, because
    its scoring API is down, is not paused by that: beat skips it with that reason."""
    return effective(entry if entry.runnable else entry.model_copy(update={"runnable": True}), overrides, now)


def _over(until: float | None, now: float) -> bool:
    return until is not None and until <= now


#: Due times are moved by microseconds to mark a change, and clocks are read slightly later; within a millisecond of a
#: slot counts as on it.
TOLERANCE = 0.001
#: Max. clock difference of two hosts in seconds: what is due now must also be due by the other's clock.
CLOCK_SKEW = 60.0


def _tick_time(pair: str, interval: int, at: float, ahead: int) -> float:
    # In whole milliseconds, so that a slot is the same float however computed.
    length = interval * 1000
    digest = hashlib.blake2b(pair.encode(), digest_size=8).digest()
    phase = int.from_bytes(digest) % length
    number = (math.floor((at + TOLERANCE) * 1000) - phase) // length + ahead
    return (number * length + phase) / 1000


def current_tick_time(pair: str, interval: int, at: float) -> float:
    """The newest slot that is not after `at`."""
    return _tick_time(pair, interval, at, 0)


def next_tick_time(pair: str, interval: int, after: float) -> float:
    """The first slot after `after`; it is at most one interval away."""
    return _tick_time(pair, interval, after, 1)


def is_slot(pair: str, interval: int, at: float) -> bool:
    """True if `at` is a slot of this pair."""
    return abs(current_tick_time(pair, interval, at) - at) <= TOLERANCE


def scheduled_time(pair: str, interval: int, due: float, now: float) -> float:
    """The scheduled time of a run that was due at `due` and is sent at `now`: a later slot passed meanwhile wins,
    because missed slots are not caught up."""
    return max(due, current_tick_time(pair, interval, now))


def next_due(pair: str, interval: int, due: float, now: float) -> float:
    """Next due time of a pair due at `due` that runs at `now`.

    After a run on its slot: the first slot after now. After a run at another moment (the first one, after a resume or a
    shortened interval): the first slot at least half an interval away, to keep runs apart.
    """
    if is_slot(pair, interval, due):
        return next_tick_time(pair, interval, max(due, now))
    # A slot exactly half an interval away counts, hence the step back from "after" to "not before".
    return next_tick_time(pair, interval, max(due, now) + interval / 2 - 2 * TOLERANCE)
