"""Beat as a service: `celery.beat.Service` with our scheduler, in a thread."""

from __future__ import annotations

import time

from celery import Celery, beat

from dsf.beat_schedule import BeatScheduler
from dsf.process.service import STUCK
from dsf.process.threads import SupervisedThread

#: Seconds for which the end of a tick is waited for: it waits at most half a second for Redis to have something.
_END = 10.0


class BeatService:
    """Beat. Each process may have one: a lock in Redis says which is active, and the others stand by."""

    name = "beat"

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._service: beat.Service | None = None
        self._scheduler: BeatScheduler | None = None
        self._is_ending = False
        self._thread = SupervisedThread(self._run, "beat")

    def start(self) -> None:
        """Start to send what is due."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the tick and release the lock, so that another beat need not wait."""
        self._is_ending = True
        if self._service is not None:
            self._service.stop()
        self._thread.join(_END)

    def problem(self) -> str:
        """See `Service`. An unreachable Redis is none: beat goes on trying."""
        if self._scheduler is None:
            return ""
        silence = time.monotonic() - self._scheduler.ticked_at
        return f"beat has been stuck for {silence:.0f} s" if silence > STUCK else ""

    def _run(self) -> None:
        # A new one each time: a scheduler that has been closed does not begin again.
        self._service = beat.Service(self._app, scheduler_cls=BeatScheduler)
        scheduler = self._service.scheduler
        assert isinstance(scheduler, BeatScheduler)
        self._scheduler = scheduler
        if not self._is_ending:
            self._service.start()
