"""Declares overdue runs lost, removes leftovers of deleted pairs, and sets right what a wrong clock has left."""

from __future__ import annotations

import threading
import time

import redis

import dsf.log
from dsf.settings import Settings
from dsf.store.looping import repeat
from dsf.store.runs import Runs
from dsf.store.ticks import RUN_SLACK

#: Seconds between sweeps when there is no more to do.
EVERY = 1.0

log = dsf.log.get(__name__)


class Sweeper:
    """Sweeps until stopped. Any number of workers may have one."""

    def __init__(self, client: redis.Redis, settings: Settings, stopping: threading.Event) -> None:
        self._runs = Runs(client)
        self._settings = settings
        self._stopping = stopping
        self._left: set[str] = set()
        self._next_leftovers = 0.0

    def run(self) -> None:
        """Sweep until stopped."""
        if not self._stopping.wait(EVERY):
            repeat(self._turn, self._stopping, doing="look for what is missing", pause=EVERY)

    def _turn(self) -> float:
        again = self.sweep(time.time())
        if time.monotonic() >= self._next_leftovers:
            # Only what is found twice is removed.
            self._next_leftovers = time.monotonic() + 60.0
            self.set_right(time.time())
            self.forget_leftovers()
            self._runs.forget_lags()
        return 0.2 if again else EVERY

    def sweep(self, now: float) -> bool:
        """Find lost runs once; returns whether to look again soon."""
        lost, again = self._runs.sweep(now=now, lost_after=self._settings.lost_after)
        if lost:
            log.warning("runs lost", count=len(lost), first=lost[:5])
        return again

    def set_right(self, now: float) -> None:
        """Runs of a clock that was ahead would else be lost only when that time has come, and scores be valid until
        then."""
        if moved := self._runs.set_runs_right(now, RUN_SLACK):
            log.warning("runs were sent in the future, as by a wrong clock: they end as if sent now", count=moved)
        if moved := self._runs.set_scores_right(now):
            log.warning("scores are from the future, as of a wrong clock: they count as measured now", count=moved)

    def forget_leftovers(self) -> None:
        """Forget pairs already gone at the last check; at the first the hub may still be doing it."""
        left = self._runs.leftovers()
        forgotten = self._runs.forget(left & self._left)
        self._left = left - self._left
        if forgotten:
            log.info("removed pairs forgotten", count=len(forgotten), first=forgotten[:5])
