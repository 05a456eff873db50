"""The reconciliation loop and its work queue. The loop takes a key, reconciles it and schedules its next run.

The queue is modelled on client-go's: each key is queued at most once and processed by one thread at a time. A key that
is added while it is processed is processed once more afterwards. A failed key is retried after a delay that doubles
with each failure. A key may be added for a later time. Namespaces take turns, so that a namespace with thousands of
changed objects does not delay the others. All durations are in seconds.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import redis
import structlog

import dsf.log
from dsf.backends.protocol import ObjectKey
from dsf.errors import BackendError, DsfError
from dsf.process.outage import Outage
from dsf.process.threads import SupervisedThread

log = dsf.log.get(__name__)

#: Seconds without a finished key, while keys wait, after which the workers count as stuck. Every request has a shorter
#: time-out, so a thread that waits for a response does not count as stuck.
STUCK_SECONDS: Final = 180.0
#: Maximum delay of a failed key.
MAX_RETRY_SECONDS: Final = 60.0

Key = TypeVar("Key")


class WorkQueue(Generic[Key]):
    """A thread-safe queue of hashable keys."""

    def __init__(
        self,
        may_process: Callable[[str, int], bool] = lambda *_: True,
        group: Callable[[Key], str] = lambda _: "",
    ) -> None:
        """`group` returns the group of a key; groups are served round-robin.

        `may_process` gets a group and the number of its keys in progress, and returns True if one more may be processed
        in parallel. The queue is locked during that call.
        """
        self._may_process = may_process
        self._group = group
        # Group -> its ready keys, in the order in which groups are served. No group is empty.
        self._ready_keys: dict[str, deque[Key]] = {}
        # Keys that wait for processing: either in `_ready_keys`, or added while in progress and waiting for `done`.
        self._waiting_keys: set[Key] = set()
        self._keys_in_progress: set[Key] = set()
        # Group -> the number of its keys in progress.
        self._busy_counts: Counter[str] = Counter()
        # Key -> its scheduled time, by the monotonic clock.
        self._scheduled_times: dict[Key, float] = {}
        # Lower bound of the scheduled times, because a scan of all times for each key would cost more than the
        # reconciliations.
        self._earliest_due_at = math.inf
        # Key -> number of calls of `retry` since the last call of `forget`.
        self._failures: dict[Key, int] = {}
        self._is_shut_down = False
        self._condition = threading.Condition()

    def __len__(self) -> int:
        """Return the number of ready keys, without those scheduled for later."""
        with self._condition:
            return sum(map(len, self._ready_keys.values()))

    def add(self, key: Key) -> None:
        """Process `key` as soon as a thread is free, instead of at its scheduled time."""
        with self._condition:
            self._add(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Process `key` after this many seconds. If the key is already scheduled, the earlier time counts."""
        if seconds <= 0:
            self.add(key)
            return
        with self._condition:
            if self._is_shut_down or (key in self._waiting_keys and key not in self._keys_in_progress):
                return
            due_at = time.monotonic() + seconds
            if due_at < self._scheduled_times.get(key, math.inf):
                self._scheduled_times[key] = due_at
                self._earliest_due_at = min(self._earliest_due_at, due_at)
                self._condition.notify()

    def retry(self, key: Key, *, min_delay: float = 0.0) -> float:
        """Process `key` again after a delay that doubles with each call until `forget`; return the delay.

        The delay is at least `min_delay` seconds.
        """
        with self._condition:
            failure_count = self._failures.get(key, 0)
            self._failures[key] = failure_count + 1
        delay: float = min(0.005 * 2 ** min(failure_count, 30), MAX_RETRY_SECONDS)
        # Add jitter, which spreads the retries of keys that failed together.
        delay *= 1 - random.uniform(0, 0.2)  # noqa: S311 (spreads load, guards nothing)
        delay = max(delay, min_delay * (1 + random.uniform(0, 0.2)))  # noqa: S311
        self.add_after(key, delay)
        return delay

    def forget(self, key: Key) -> None:
        """Reset the retry delay of a key that succeeded."""
        with self._condition:
            self._failures.pop(key, None)

    def get(self) -> Key | None:
        """Wait for a key and return it; None after shutdown. Call `done` with the key after processing it."""
        with self._condition:
            while True:
                if self._is_shut_down:
                    return None
                wait_seconds = self._release_due_keys()
                for group in self._ready_keys:
                    if self._may_process(group, self._busy_counts[group]):
                        return self._take(group)
                # Limit the wait: operating systems reject long ones, such as for a pause until the year 9999.
                self._condition.wait(min(wait_seconds, 3600.0) if wait_seconds is not None else None)

    def done(self, key: Key) -> None:
        """Mark `key` as processed; if it was added in the meantime, it is ready again."""
        with self._condition:
            if key in self._keys_in_progress:
                self._keys_in_progress.remove(key)
                self._busy_counts[self._group(key)] -= 1
                self._busy_counts = +self._busy_counts
            if key in self._waiting_keys and not self._is_shut_down:
                self._make_ready(key)
            # Wake a thread, because another key of the group may wait for this one (`may_process`).
            self._condition.notify()

    def shutdown(self) -> None:
        """Stop the queue; every waiting `get` returns None."""
        with self._condition:
            self._is_shut_down = True
            self._ready_keys.clear()
            self._scheduled_times.clear()
            self._condition.notify_all()

    def _add(self, key: Key) -> None:
        if self._is_shut_down:
            return
        self._scheduled_times.pop(key, None)
        if key in self._waiting_keys:
            return
        self._waiting_keys.add(key)
        if key not in self._keys_in_progress:
            self._make_ready(key)
            self._condition.notify()

    def _make_ready(self, key: Key) -> None:
        self._ready_keys.setdefault(self._group(key), deque()).append(key)

    def _take(self, group: str) -> Key:
        """Move the first ready key of a group to the keys in progress, and return it.

        The group is served again after all other groups.
        """
        keys = self._ready_keys.pop(group)
        key = keys.popleft()
        if keys:
            self._ready_keys[group] = keys
        self._waiting_keys.discard(key)
        self._keys_in_progress.add(key)
        self._busy_counts[group] += 1
        return key

    def _release_due_keys(self) -> float | None:
        """Make due keys ready; return the seconds until the next key is due, or None if no key is scheduled."""
        now = time.monotonic()
        if now >= self._earliest_due_at:
            for key in [key for key, due_at in self._scheduled_times.items() if due_at <= now]:
                self._add(key)
            self._earliest_due_at = min(self._scheduled_times.values(), default=math.inf)
        return max(0.0, self._earliest_due_at - now) if self._scheduled_times else None


#: Reads the object of a key and brings the actual state to the desired state. The function must be idempotent, because
#: it gets no event. Returns the seconds until the next reconciliation, or None to wait for a change. After an exception
#: the key is retried later.
Reconcile = Callable[[ObjectKey], float | None]


class Controller:
    """A group of worker threads that call one function with the keys of one queue."""

    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        workers: int,
        outage: Outage,
        may_process: Callable[[str, int], bool] = lambda *_: True,
    ) -> None:
        """`may_process` gets a namespace and the number of workers that are busy with its keys, as for WorkQueue."""
        self.queue = WorkQueue[ObjectKey](may_process, lambda key: key.namespace)
        #: Reconciliations by result: done, requeued, error.
        self.results: Counter[str] = Counter()
        self.name = name
        self._reconcile = reconcile
        self._outage = outage
        self._threads = [SupervisedThread(self._process_keys, f"{name}-{number}") for number in range(workers)]
        self._lock = threading.Lock()
        # Number of finished keys at the last call of `is_progressing`, and monotonic time of the last progress.
        self._last_progress: tuple[int, float] = (-1, 0.0)

    def is_progressing(self) -> bool:
        """Return True unless queued keys have waited for STUCK_SECONDS without progress. Call it periodically."""
        with self._lock:
            finished_count = sum(self.results.values())
            now = time.monotonic()
            if finished_count != self._last_progress[0] or not len(self.queue):
                self._last_progress = (finished_count, now)
            return now - self._last_progress[1] < STUCK_SECONDS

    def start(self) -> None:
        """Start the workers."""
        for thread in self._threads:
            thread.start()

    def stop(self, patience: float = 10.0) -> None:
        """Take no more keys and wait up to `patience` seconds for work in progress."""
        self.queue.shutdown()
        deadline = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        log.info("controller stopped", controller=self.name, **self.results)

    def _process_keys(self) -> None:
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
            next_run_seconds = self._reconcile(key)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            # Log the outage once for all keys, but retry each key separately.
            self._outage.begin(error)
            self.queue.retry(key)
            return "error"
        except (DsfError, redis.RedisError) as error:
            retry_delay = self._retry(key, min_delay=_get_requested_delay(error))
            log.warning("reconciliation failed, will be tried again", error=str(error), after=retry_delay)
            return "error"
        except Exception:
            log.exception("reconciliation failed, will be tried again", after=self._retry(key))
            return "error"
        self.queue.forget(key)
        if next_run_seconds is not None:
            self.queue.add_after(key, next_run_seconds)
            return "requeued"
        return "done"

    def _retry(self, key: ObjectKey, *, min_delay: float = 0.0) -> float:
        return round(self.queue.retry(key, min_delay=min_delay), 3)


def _get_requested_delay(error: Exception) -> float:
    """Return the seconds for which the API server wants no retry, or 0. They prevent that retries overload it."""
    retry_after = getattr(error, "retry_after", None)
    if not retry_after and isinstance(error, BackendError) and error.is_busy:
        # Wait for a second if a busy server sends no Retry-After.
        retry_after = 1.0
    return min(retry_after or 0.0, MAX_RETRY_SECONDS)
