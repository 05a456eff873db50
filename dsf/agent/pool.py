"""The stages' thread pool: consecutive stages of one cycle run in the same thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from celery.concurrency.base import BasePool, apply_target

import dsf.log
from dsf.threads import SupervisedThread
from dsf.workerprobes import keep_alive, lives_no_more

log = dsf.log.get(__name__)

#: Seconds between checks for remaining work at shutdown.
_LOOK = 0.05


_Work = tuple[Any, ...]


class _Own(threading.local):
    """State of one thread."""

    #: The call to make after the current work, whether it is in progress, and the work it produced.
    receive: Callable[[], object] | None = None
    receives = False
    next: _Work | None = None


class StagePool(BasePool):
    """`limit` threads that take work in order of arrival; a hanging one is replaced."""

    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: Called in a thread that becomes free when none was; it must not block.
        self.on_room: Callable[[], object] = lambda: None
        #: Whether work is pending outside of the pool; asked at shutdown.
        self.is_more_to_come: Callable[[], bool] = lambda: False
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._own = _Own()
        self._lock = threading.Lock()
        #: Work items queued or running.
        self._unfinished = 0
        #: Number of threads, and of hanging ones.
        self._threads = 0
        self._hanging = 0

    def room(self) -> int:
        """Number of free threads."""
        return max(0, int(self.limit) - self._unfinished + self._hanging)

    def on_start(self) -> None:
        """Start the threads."""
        self.replace(0)

    def replace(self, hanging: int) -> None:
        """Replace this many hanging threads, at most `limit`. The extra threads end when those return."""
        with self._lock:
            if hanging > self._hanging:
                log.warning("stages hang long after their cycles should have ended", count=hanging)
            self._hanging = min(hanging, self.limit)
            missing = self.limit + self._hanging - self._threads
            self._threads += max(missing, 0)
        for _ in range(missing):
            SupervisedThread(self._run, "dsf-stage").start()
        if missing > 0:
            self.on_room()

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Any = None,
        kwargs: Any = None,
        callback: Callable[..., Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        **_: Any,
    ) -> None:
        """Run it as soon as a thread is free; a follow-up in its own."""
        work = (target, args, kwargs, callback, accept_callback)
        if self._own.receives:
            self._own.next = work
            return
        with self._lock:
            self._unfinished += 1
        self._work.put(work)

    def follow(self, receive: Callable[[], object]) -> None:
        """Call `receive` in this pool thread after its current work; the work that it applies runs there next.

        So it waits neither for another thread nor for the worker's main loop.
        """
        self._own.receive = receive

    def on_stop(self) -> None:
        """Wait for all work that has begun, follow-ups included."""
        while True:
            # In this order: running work may add pending work, which then runs.
            is_busy = self._unfinished > self._hanging
            if not (is_busy or self.is_more_to_come() or self._unfinished > self._hanging):
                break
            if is_busy:
                self.is_more_to_come()
            keep_alive()
            time.sleep(_LOOK)
        lives_no_more()
        for _ in range(self._threads):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                # No reference kept while idle: it would hold the payload.
                while work is not None:
                    work = self._do(work)
            finally:
                with self._lock:
                    self._unfinished -= 1
                    has_made_room = self._unfinished - self._hanging == self.limit - 1
                    is_too_many = self._threads > self.limit + self._hanging
                    self._threads -= is_too_many
                if has_made_room:
                    self.on_room()
            if is_too_many:
                return

    def _do(self, work: _Work) -> _Work | None:
        """Do it; returns the follow-up."""
        own = self._own
        try:
            apply_target(*work)
        except Exception:
            # Celery itself failed, outside of the task.
            log.exception("stage not finished")
        receive, own.receive, own.next = own.receive, None, None
        if receive is not None:
            own.receives = True
            try:
                receive()
            except Exception:
                log.exception("stage not begun")
            finally:
                own.receives = False
        return own.next
