"""Repairs timestamps in Redis after its clock was set back.

All timestamps in Redis are by its own clock. If that clock was ahead for a while and is corrected, timestamps in the
future remain: pairs that are due in two hours, runs that never become lost, scores that stay fresh, and run ids that
outrank all later ones. A guard detects the step by the highest time that the clock has shown, and moves these
timestamps to now. Beat guards the schedule, and results workers guard runs and pairs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from typing import Any, Final

import redis

import dsf.log
from dsf import keys
from dsf.messages import make_latest_run_id
from dsf.process.hubclock import TOLERANCE
from dsf.store.client import load_lua, parse_number, run_atomically, split_into_batches
from dsf.store.entries import CLOCK_SKEW, apply_overrides, compute_next_tick_time
from dsf.store.schedule import ScheduleStore

log = dsf.log.get(__name__)

#: Seconds for which the guard repeats its repair. Other processes write timestamps in the future until they measure the
#: clock again, which takes a few seconds.
REPAIR_TIME: Final = 30.0
#: Maximum pairs per script call, which blocks Redis for other clients.
_BATCH_SIZE: Final = 500


class ClockGuard(ABC):
    """Detects that Redis' clock was set back, and repairs timestamps. Methods raise redis.RedisError."""

    #: The service that writes the guarded timestamps.
    service: str

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._schedule = ScheduleStore(client)
        # time.monotonic() at which the current repair is complete, or None without a repair.
        self._complete_at: float | None = None

    def check(self, now: float) -> bool:
        """Record that the clock shows `now` (unix seconds), or repair if it has shown a later time.

        Call it every few seconds. Returns True during a repair, which is repeated until it is complete, by another
        process after a crash.
        """
        key = keys.clock(self.service)
        newest_time = parse_number("time", key, self._redis.get(key))
        if newest_time > now + TOLERANCE:
            if self._complete_at is None:
                self._complete_at = time.monotonic() + REPAIR_TIME
                log.error("the clock of redis was set back", seconds=round(newest_time - now))
            if repaired_count := self.repair(now):
                log.warning("repaired timestamps in the future", count=repaired_count)
            if time.monotonic() < self._complete_at:
                return True
        self._complete_at = None
        self._redis.set(key, repr(now))
        return False

    @abstractmethod
    def repair(self, now: float) -> int:
        """Correct every timestamp that is impossible at `now` (unix seconds), and return their number."""


class ScheduleGuard(ClockGuard):
    """Repairs the due times of the schedule. `BeatLock` repairs the lock of beat."""

    service = "beat"

    def repair(self, now: float) -> int:
        """Correct due times that are too late: these pairs become due at their next slot."""
        overrides, corrected_count = self._schedule.read_overrides(), 0
        future_due_times: Any = self._redis.zrangebyscore(keys.DUE, now + TOLERANCE, "+inf", withscores=True)
        for batch in split_into_batches(((str(pair), float(due_at)) for pair, due_at in future_due_times), _BATCH_SIZE):
            due_times = dict(batch)
            corrections: list[str | float] = []
            for entry in self._schedule.read_entries(due_times):
                interval = apply_overrides(entry, overrides, now).interval
                # After a run between two slots, the next run is up to one and a half intervals later.
                if due_times[entry.pair] > now + 1.5 * interval + TOLERANCE:
                    corrections += [compute_next_tick_time(entry.pair, interval, now), entry.pair]
            if corrections:
                # LT keeps due times that beat has moved to an earlier time in the meantime.
                run_atomically(self._redis, ("ZADD", keys.DUE, "XX", "LT", *corrections))
            corrected_count += len(corrections) // 2
        return corrected_count


class ResultsGuard(ClockGuard):
    """Repairs runs, scores, and the stored run ids to which the hub compares later runs."""

    service = "results"

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self._script = client.register_script(load_lua("repair_times"))

    def repair(self, now: float) -> int:
        """End runs in the future as lost, and date scores in the future to now."""
        self._redis.zremrangebyscore(keys.LOST_RUNS, now + TOLERANCE, "+inf")
        return self._count_future_runs_as_lost(now) + self._repair_pairs(now)

    def _count_future_runs_as_lost(self, now: float) -> int:
        """Count open runs in the future as lost, and return their number. Their results are refused later."""
        latest_run_id, closed_count = make_latest_run_id(now + TOLERANCE), 0
        future_runs: Any = self._redis.zrangebyscore(keys.OPEN_RUNS, now, "+inf")
        for batch in split_into_batches(
            (str(run) for run in future_runs if str(run).rpartition("/")[2] > latest_run_id), _BATCH_SIZE
        ):
            # Remove runs one by one, so that a run that has just ended is not counted twice.
            removal_counts = run_atomically(self._redis, *(("ZREM", keys.OPEN_RUNS, run) for run in batch))
            lost_counts = Counter(
                run.rpartition("/")[0] for run, count in zip(batch, removal_counts, strict=True) if count
            )
            # Pairs that were removed from the schedule have no counters.
            scheduled_pairs = [entry.pair for entry in self._schedule.read_entries(lost_counts)]
            counts = [
                ("HINCRBY", keys.pair_key(*keys.split_pair(pair)), "n:lost", lost_counts[pair])
                for pair in scheduled_pairs
            ]
            if counts:
                run_atomically(self._redis, *counts, raise_command_errors=False)
            closed_count += sum(lost_counts.values())
        return closed_count

    def _repair_pairs(self, now: float) -> int:
        """Date scores in the future to now, and their run ids to a minute ago. Return the number of repaired pairs."""
        earlier_run_prefix = f"{int((now - CLOCK_SKEW) * 1000):013d}"
        times = repr(now), make_latest_run_id(now + TOLERANCE), earlier_run_prefix, int(TOLERANCE)
        repaired_count = 0
        for batch in split_into_batches((str(pair) for pair in self._redis.hkeys(keys.ROWS)), _BATCH_SIZE):
            repaired_count += int(self._script(keys=[keys.WRITES], args=[*times, *batch]))
        return repaired_count
