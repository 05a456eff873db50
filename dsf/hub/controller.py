"""The reconciliation loop: take a key, reconcile it, schedule its next run."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import redis
import structlog

import dsf.log
from dsf.backends.protocol import ObjectKey
from dsf.errors import BackendError, DsfError
from dsf.hub.desiredstate import DesiredState
from dsf.hub.outage import Outage
from dsf.hub.summaries import FleetPlan
from dsf.hub.workqueue import RETRY_MAX, WorkQueue
from dsf.process.threads import SupervisedThread

log = dsf.log.get(__name__)


#: Seconds without a finished key, while some wait, after which the workers count as stuck. Every request has a
#: time-out, so a waiting thread returns long before.
STUCK: Final = 180.0


#: Reads the object named by the key and brings the actual state to the desired one. It does not get the event: it must
#: be idempotent. Returns the seconds until the next reconciliation, None to wait for a change. After an exception the
#: key is retried later.
Reconcile = Callable[[ObjectKey], float | None]


class Controller:
    """Worker threads that feed the keys of one queue to one function."""

    def __init__(self, name: str, reconcile: Reconcile, *, workers: int, outage: Outage) -> None:
        self.queue: WorkQueue[ObjectKey] = WorkQueue()
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

    def stop(self) -> None:
        """Take no more keys and wait for work in progress."""
        self.queue.shutdown()
        deadline = time.monotonic() + 10.0
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


#: A plan is made from all objects, whatever changed. After one that took a second none is made for this many seconds:
#: so while a thousand scorers become Active one after the other, planning takes a quarter of the time, not all of it.
REST: Final = 3.0


class Planner:
    """Makes new plans in a thread of its own: soon after a change, and never one right after the other."""

    def __init__(self, desired: DesiredState, outage: Outage) -> None:
        self._desired = desired
        self._rests_until = -math.inf
        #: Its queue has one key, which stands for the whole plan.
        self.controller = Controller("plan", self._plan, workers=1, outage=outage)

    def changed(self, *objects: ObjectKey) -> None:
        """These objects changed: they are reconciled with a plan that knows it."""
        self._desired.note(*objects)
        self.controller.queue.add_after(self._desired.config_key, self._rests_until - time.monotonic())

    def update(self) -> FleetPlan:
        """A plan made in the caller's thread, for one that cannot wait. Raises BackendError."""
        try:
            return self._desired.update()
        except Exception:
            # The caller tries its own work again, and not what has changed meanwhile.
            self.controller.queue.retry(self._desired.config_key)
            raise

    def _plan(self, _: ObjectKey) -> float | None:
        """Returns the seconds until the next plan is due without a change; None if never. Raises BackendError."""
        began = time.monotonic()
        if began < self._rests_until:
            return self._rests_until - began
        try:
            self._desired.update()
        finally:
            ended = time.monotonic()
            self._rests_until = ended + REST * (ended - began)
        return max(0.0, self._desired.ends - time.time()) if self._desired.ends < math.inf else None
