"""The threads in which the stages run: those of one cycle in the same one, as long as each follows the one before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from celery.concurrency.base import BasePool, apply_target

import dsf.log
from dsf.workerprobes import keep_alive, lives_no_more

log = dsf.log.get(__name__)

#: Seconds between two looks for the end of the work that is left.
_LOOK = 0.05


_Work = tuple[Any, ...]


class _Own(threading.local):
    """What belongs to one thread."""

    #: What is to be called after the work that is being done, whether that goes on, and what it gave.
    receive: Callable[[], object] | None = None
    receives = False
    next: _Work | None = None


class StagePool(BasePool):
    """`limit` threads that take what is to be run in the order in which it came; one that hangs is replaced."""

    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: Called in a thread that makes room for one more tick when there was none; it must not wait.
        self.on_room: Callable[[], object] = lambda: None
        #: Whether something is still to come although no thread runs it; asked when the worker ends.
        self.is_more_to_come: Callable[[], bool] = lambda: False
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._own = _Own()
        self._lock = threading.Lock()
        #: What was given to the pool and has not ended.
        self._unfinished = 0
        #: Threads that are there, and how many of them hang.
        self._threads = 0
        self._hanging = 0

    def room(self) -> int:
        """How many threads are free."""
        return max(0, int(self.limit) - self._unfinished + self._hanging)

    def on_start(self) -> None:
        """Start the threads."""
        self.replace(0)

    def replace(self, hanging: int) -> None:
        """So many threads hang: others take their place, up to as many again. They go when the first ones return."""
        with self._lock:
            if hanging > self._hanging:
                log.warning("stages hang long after their cycles should have ended", count=hanging)
            self._hanging = min(hanging, self.limit)
            missing = self.limit + self._hanging - self._threads
            self._threads += max(missing, 0)
        for _ in range(missing):
            # Daemons: one that hangs must not keep a process that is to end.
            threading.Thread(target=self._run, name="dsf-stage", daemon=True).start()
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
        """Run it as soon as a thread is free; what follows, in its own."""
        work = (target, args, kwargs, callback, accept_callback)
        if self._own.receives:
            self._own.next = work
            return
        with self._lock:
            self._unfinished += 1
        self._work.put(work)

    def follow(self, receive: Callable[[], object]) -> None:
        """Call `receive` in this thread, one of the pool's, after what runs there now; what it applies runs there next.

        So it waits for no other thread and for no turn of the worker's main loop.
        """
        self._own.receive = receive

    def on_stop(self) -> None:
        """Wait until all is done that has begun, with all that follows from it."""
        while True:
            # In this order: what runs may give more to come, and what came runs.
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
                # Not kept until the next one comes: it has the payload of this one.
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
        """Do it, and say what follows."""
        own = self._own
        try:
            apply_target(*work)
        except Exception:
            # Celery itself failed at what it does around a task.
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
