"""Runs beat as a service: `celery.beat.Service` with `BeatScheduler`, in a thread."""

from __future__ import annotations

import time

from celery import Celery, beat

from dsf.beat_schedule import BeatScheduler
from dsf.process.service import STUCK_SECONDS
from dsf.process.threads import SupervisedThread

#: Maximum seconds to wait for the end of a scheduler tick, which waits at most half a second for data in Redis.
_MAX_STOP_SECONDS = 10.0


class BeatService:
    """The beat service. Each process may have one; a lock in Redis elects the active beat, and the others stand by."""

    name = "beat"

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._service: beat.Service | None = None
        self._scheduler: BeatScheduler | None = None
        self._is_ending = False
        self._thread = SupervisedThread(self._run, "beat")

    def start(self) -> None:
        """Start sending due ticks."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the tick and release the lock, so that another beat can start immediately."""
        self._is_ending = True
        if self._service is not None:
            self._service.stop()
        self._thread.join(_MAX_STOP_SECONDS)

    def find_problem(self) -> str:
        """Implement `Service.find_problem`. An unreachable Redis is not a problem, because beat retries."""
        if self._scheduler is None:
            return ""
        silence = time.monotonic() - self._scheduler.ticked_at
        return f"beat has been stuck for {silence:.0f} s" if silence > STUCK_SECONDS else ""

    def _run(self) -> None:
        # Create a new service at each start, because a closed scheduler cannot be restarted.
        self._service = beat.Service(self._app, scheduler_cls=BeatScheduler)
        scheduler = self._service.scheduler
        assert isinstance(scheduler, BeatScheduler)
        self._scheduler = scheduler
        if not self._is_ending:
            self._service.start()
