"""The reconciliation loop: take a key, reconcile it, schedule its next run."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Set
from typing import Final

import redis
import structlog

import dsf.log
from dsf.backends.protocol import ObjectKey
from dsf.errors import BackendError, DsfError
from dsf.hub.outage import Outage
from dsf.hub.workqueue import RETRY_MAX, WorkQueue
from dsf.process.threads import SupervisedThread

log = dsf.log.get(__name__)


#: Seconds without a finished key, while some wait, after which the workers count as stuck. Every request has a
#: time-out, so a waiting thread returns long before.
STUCK: Final = 180.0


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
        """Whether waiting work progresses. Must be called periodically."""
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
            after = self._retry(key, least=_asked(error))
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

    def _retry(self, key: ObjectKey, *, least: float = 0.0) -> float:
        return round(self.queue.retry(key, least=least), 3)


def _asked(error: Exception) -> float:
    """Seconds requested by the API server (Retry-After): else all keys together would query it constantly."""
    asked = getattr(error, "retry_after", None)
    if not asked and isinstance(error, BackendError) and error.is_busy:
        # A busy server may send no Retry-After.
        asked = 1.0
    return min(asked or 0.0, RETRY_MAX)
