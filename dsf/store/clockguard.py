"""Repairs what is in Redis after its own time went backwards: the one place for all that this leaves behind.

All times in Redis are read on its own clock. If that was wrong for a while and is corrected, times are left that are
still to come: pairs that are due in two hours, runs that nobody declares lost, scores that stay fresh, run ids that
outrank all later ones. A guard notices it by the newest time that the clock has shown, and moves all of them to now.
Each service has one for the times that it writes: beat for the schedule, results workers for runs and pairs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from typing import Any, Final

import redis

import dsf.log
from dsf import keys
from dsf.messages import latest_run_id
from dsf.process.hubclock import TOLERANCE
from dsf.store.client import at_once, batched, lua, number
from dsf.store.entries import CLOCK_SKEW, effective, next_tick_time
from dsf.store.schedule import ScheduleStore

log = dsf.log.get(__name__)

#: Seconds for which the guard repairs: the other processes measure the clock within some seconds, and until then write
#: more times that are too late.
REPAIR_TIME: Final = 30.0
#: Pairs per call of the script, which blocks Redis for other clients.
_BATCH: Final = 500


class ClockGuard(ABC):
    """Compares the clock of Redis with the newest time that it has shown. Methods raise redis.RedisError."""

    #: The service that writes the guarded times.
    service: str

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._schedule = ScheduleStore(client)
        # time.monotonic() at which the repair is complete; None while there is none.
        self._complete_at: float | None = None

    def check(self, now: float) -> bool:
        """Remember that the clock shows `now` (unix seconds), or repair if it showed more; return whether it repairs.

        Call it every few seconds. A repair is repeated until it is complete, also by another process after a crash.
        """
        key = keys.clock(self.service)
        newest = number("time", key, self._redis.get(key))
        if newest > now + TOLERANCE:
            if self._complete_at is None:
                self._complete_at = time.monotonic() + REPAIR_TIME
                log.error("the time of redis went backwards", seconds=round(newest - now))
            if repaired := self.repair(now):
                log.warning("times that were still to come are repaired", count=repaired)
            if time.monotonic() < self._complete_at:
                return True
        self._complete_at = None
        self._redis.set(key, repr(now))
        return False

    @abstractmethod
    def repair(self, now: float) -> int:
        """Move every time that is later than it can be at `now` (unix seconds); return their number."""


class ScheduleGuard(ClockGuard):
    """Repairs due times. Beats shorten a lock that would live too long themselves (`BeatLock`)."""

    service = "beat"

    def repair(self, now: float) -> int:
        """Make pairs that are due too late due at their next slot."""
        overrides, moved = self._schedule.overrides(), 0
        later: Any = self._redis.zrangebyscore(keys.DUE, now + TOLERANCE, "+inf", withscores=True)
        for batch in batched(((str(pair), float(at)) for pair, at in later), _BATCH):
            due = dict(batch)
            earlier: list[str | float] = []
            for entry in self._schedule.entries(due):
                interval = effective(entry, overrides, now).interval
                # The run after one at another moment than a slot is up to one and a half intervals away.
                if due[entry.pair] > now + 1.5 * interval + TOLERANCE:
                    earlier += [next_tick_time(entry.pair, interval, now), entry.pair]
            if earlier:
                # LT: beat may have moved one to an earlier time meanwhile.
                at_once(self._redis, ("ZADD", keys.DUE, "XX", "LT", *earlier))
            moved += len(earlier) // 2
        return moved


class ResultsGuard(ClockGuard):
    """Repairs what results have left: runs, scores and the run ids that later ones are compared with."""

    service = "results"

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self._script = client.register_script(lua("repair_times"))

    def repair(self, now: float) -> int:
        """End runs of that time as lost, and let scores of that time count as measured now."""
        self._redis.zremrangebyscore(keys.LOST_RUNS, now + TOLERANCE, "+inf")
        return self._close_runs(now) + self._repair_pairs(now)

    def _close_runs(self, now: float) -> int:
        """Count open runs of that time as lost; returns their number. Their results are refused as too far ahead."""
        latest, closed = latest_run_id(now + TOLERANCE), 0
        later: Any = self._redis.zrangebyscore(keys.OPEN_RUNS, now, "+inf")
        for batch in batched((str(run) for run in later if str(run).rpartition("/")[2] > latest), _BATCH):
            # The runs are removed one by one, so that a run that ended meanwhile is not counted twice.
            removed = at_once(self._redis, *(("ZREM", keys.OPEN_RUNS, run) for run in batch))
            lost = Counter(run.rpartition("/")[0] for run, count in zip(batch, removed, strict=True) if count)
            # Removed pairs have no books.
            scheduled = [entry.pair for entry in self._schedule.entries(lost)]
            counts = [("HINCRBY", keys.pair_key(*keys.split_pair(pair)), "n:lost", lost[pair]) for pair in scheduled]
            if counts:
                at_once(self._redis, *counts, is_strict=False)
            closed += sum(lost.values())
        return closed

    def _repair_pairs(self, now: float) -> int:
        """Let scores of that time count as measured now, and its run ids as those of a minute ago."""
        earlier = f"{int((now - CLOCK_SKEW) * 1000):013d}"
        times = repr(now), latest_run_id(now + TOLERANCE), earlier, int(TOLERANCE)
        repaired = 0
        for batch in batched((str(pair) for pair in self._redis.hkeys(keys.ROWS)), _BATCH):
            repaired += int(self._script(keys=[keys.WRITES], args=[*times, *batch]))
        return repaired
