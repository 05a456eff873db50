"""The reconciliation loop and its work queue: take a key, reconcile it, schedule its next run.

The queue is modelled on client-go's: each key is queued at most once and processed by one thread at a time. A key added
while being processed is processed once more afterwards; a failed key returns after a doubling delay; a key may be added
for later. All times are seconds.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Set
from typing import Final, Generic, TypeVar

import redis
import structlog

import dsf.log
from dsf.backends.protocol import ObjectKey
from dsf.errors import BackendError, DsfError
from dsf.process.outage import Outage
from dsf.process.threads import SupervisedThread

log = dsf.log.get(__name__)

#: Seconds without a finished key, while some wait, after which the workers count as stuck. Every request has a
#: time-out, so a waiting thread returns long before.
STUCK: Final = 180.0

#: Longest delay of a failed key.
RETRY_MAX: Final = 60.0

Key = TypeVar("Key")


class WorkQueue(Generic[Key]):
    """A thread-safe queue of hashable keys."""

    def __init__(self, may_begin: Callable[[Key, Set[Key]], bool] = lambda *_: True) -> None:
        """`may_begin` returns True if a ready key may be processed beside these other keys; otherwise the key keeps its
        place in the queue. The queue is locked during the call."""
        self._may_begin = may_begin
        self._ready: deque[Key] = deque()
        # Waiting for processing, in `_ready` or, while in `_processing`, until `done`.
        self._dirty: set[Key] = set()
        self._processing: set[Key] = set()
        # Key -> its scheduled time, by the monotonic clock.
        self._later: dict[Key, float] = {}
        # Lower bound of the scheduled times: scanning all of them for each key would cost more than the keys' work.
        self._earliest = math.inf
        self._failures: dict[Key, int] = {}
        self._is_shut_down = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """Number of ready keys, without those for later."""
        with self._changed:
            return len(self._ready)

    def add(self, key: Key) -> None:
        """Process `key` as soon as a thread is free. Its scheduled time is dropped."""
        with self._changed:
            self._add(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Process `key` after this time. If several times are given, the earliest counts."""
        if seconds <= 0:
            self.add(key)
            return
        with self._changed:
            if self._is_shut_down or (key in self._dirty and key not in self._processing):
                return
            due = time.monotonic() + seconds
            if due < self._later.get(key, math.inf):
                self._later[key] = due
                self._earliest = min(self._earliest, due)
                self._changed.notify()

    def retry(self, key: Key, *, min_delay: float = 0.0) -> float:
        """Process `key` again after a delay that doubles with each call until `forget`; returns the delay.

        The delay is at least `min_delay` seconds.
        """
        with self._changed:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
        delay: float = min(0.005 * 2 ** min(failures, 30), RETRY_MAX)
        # Keys that failed together are not retried together.
        delay *= 1 - random.uniform(0, 0.2)  # noqa: S311 (spreads load, guards nothing)
        delay = max(delay, min_delay * (1 + random.uniform(0, 0.2)))  # noqa: S311
        self.add_after(key, delay)
        return delay

    def forget(self, key: Key) -> None:
        """`key` succeeded: its next failure starts with the shortest delay again."""
        with self._changed:
            self._failures.pop(key, None)

    def get(self) -> Key | None:
        """Wait for a key and take it; None after shutdown. Call `done` with it afterwards."""
        with self._changed:
            while True:
                if self._is_shut_down:
                    return None
                wait = self._bring_due()
                for key in self._ready:
                    if self._may_begin(key, self._processing):
                        self._ready.remove(key)
                        self._dirty.discard(key)
                        self._processing.add(key)
                        return key
                # No operating system can wait for a time such as a pause until 9999.
                self._changed.wait(min(wait, 3600.0) if wait is not None else None)

    def done(self, key: Key) -> None:
        """`key` is processed; if added meanwhile, it is ready again."""
        with self._changed:
            self._processing.discard(key)
            if key in self._dirty and not self._is_shut_down:
                self._ready.append(key)
            # Another key may have been waiting because it could not begin beside this one.
            self._changed.notify()

    def shutdown(self) -> None:
        """Stop the queue; every waiting `get` returns None."""
        with self._changed:
            self._is_shut_down = True
            self._ready.clear()
            self._later.clear()
            self._changed.notify_all()

    def _add(self, key: Key) -> None:
        if self._is_shut_down:
            return
        self._later.pop(key, None)
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            self._ready.append(key)
            self._changed.notify()

    def _bring_due(self) -> float | None:
        """Make due keys ready; returns the time until the next one, None if there is none."""
        now = time.monotonic()
        if now >= self._earliest:
            for key in [key for key, due in self._later.items() if due <= now]:
                self._add(key)
            self._earliest = min(self._later.values(), default=math.inf)
        return max(0.0, self._earliest - now) if self._later else None


#: Reads the object named by the key and brings the actual state to the desired one. A reconciler does not get the
#: event: it must be idempotent. Returns the seconds until the next reconciliation, None to wait for a change. After an
#: exception the key is retried later.
Reconcile = Callable[[ObjectKey], float | None]


class Controller:
    """Worker threads that feed the keys of one queue to one function."""

    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        workers: int,
        outage: Outage,
        may_begin: Callable[[ObjectKey, Set[ObjectKey]], bool] = lambda *_: True,
    ) -> None:
        """`may_begin` as for WorkQueue."""
        self.queue = WorkQueue(may_begin)
        #: Reconciliations by result: done, requeued, error.
        self.results: Counter[str] = Counter()
        self.name = name
        self._reconcile = reconcile
        self._outage = outage
        self._threads = [SupervisedThread(self._work, f"{name}-{number}") for number in range(workers)]
        self._lock = threading.Lock()
        # Seen by `is_progressing`: finished keys, and since when unchanged while work waits.
        self._seen: tuple[int, float] = (-1, 0.0)

    def is_progressing(self) -> bool:
        """True if waiting work progresses. Must be called periodically."""
        with self._lock:
            finished = sum(self.results.values())
            now = time.monotonic()
            if finished != self._seen[0] or not len(self.queue):
                self._seen = (finished, now)
            return now - self._seen[1] < STUCK

    def start(self) -> None:
        """Start the workers."""
        for thread in self._threads:
            thread.start()

    def stop(self, patience: float = 10.0) -> None:
        """Take no more keys and wait, at most so many seconds, for work in progress."""
        self.queue.shutdown()
        deadline = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        log.info("controller stopped", controller=self.name, **self.results)

    def _work(self) -> None:
        while (key := self.queue.get()) is not None:
            with structlog.contextvars.bound_contextvars(kind=key.kind.value, name=key.name, namespace=key.namespace):
                try:
                    result = self._handle(key)
                finally:
                    self.queue.done(key)
            with self._lock:
                self.results[result] += 1

    def _handle(self, key: ObjectKey) -> str:
        try:
            again_after = self._reconcile(key)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            # Logged once for all keys; each is retried by itself.
            self._outage.begin(error)
            self.queue.retry(key)
            return "error"
        except (DsfError, redis.RedisError) as error:
            after = self._retry(key, min_delay=_asked(error))
            log.warning("reconciliation failed, will be tried again", error=str(error), after=after)
            return "error"
        except Exception:
            log.exception("reconciliation failed, will be tried again", after=self._retry(key))
            return "error"
        self.queue.forget(key)
        if again_after is not None:
            self.queue.add_after(key, again_after)
            return "requeued"
        return "done"

    def _retry(self, key: ObjectKey, *, min_delay: float = 0.0) -> float:
        return round(self.queue.retry(key, min_delay=min_delay), 3)


def _asked(error: Exception) -> float:
    """Seconds requested by the API server (Retry-After): else all keys together would query it constantly."""
    retry_after = getattr(error, "retry_after", None)
    if not retry_after and isinstance(error, BackendError) and error.is_busy:
        # A busy server may send no Retry-After.
        retry_after = 1.0
    return min(retry_after or 0.0, RETRY_MAX)
