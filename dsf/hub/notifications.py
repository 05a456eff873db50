"""Receives notifications from other processes through Redis about changed cycle outcomes and user actions."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Final

import redis

import dsf.log
from dsf import keys
from dsf.backends.protocol import Backend, ObjectKey
from dsf.fleet.changes import Action, Change, parse_change_id, read_after
from dsf.process import hubclock
from dsf.process.outage import Outage
from dsf.process.threads import SupervisedThread
from dsf.store.client import run_atomically

log = dsf.log.get(__name__)

#: Maximum names of changed scorers that one command reads.
_BATCH_SIZE: Final = 500
#: Maximum seconds of one blocking read, after which the thread checks whether it should stop.
_BLOCKING_READ_SECONDS: Final = 0.5
#: Maximum seconds of one round of the listening loop. The time-outs of Redis and Sentinel are much shorter.
_MAX_ROUND_SECONDS: Final = 120.0
#: Kubernetes deletes an Event after this time, so older actions get none.
_EVENT_LIFETIME_SECONDS: Final = 3600


class NotificationListener:
    """Waits for notifications in a thread. During an outage of Redis only this thread probes the connection."""

    def __init__(
        self,
        client: redis.Redis,
        outage: Outage,
        *,
        on_changed: Callable[[set[str]], None],
        on_wake: Callable[[], None],
        on_back: Callable[[], None],
    ) -> None:
        """Prepare the thread; `start` begins listening.

        `on_changed` gets the names of scorers whose cycles changed between success and failure. `on_wake` is called for
        any other notification, and may raise redis.RedisError. `on_back` is called when an outage ends.
        """
        self._redis = client
        self._outage = outage
        self._on_changed = on_changed
        self._on_wake = on_wake
        self._on_back = on_back
        # time.monotonic() at the start of the newest round.
        self._last_round_at = time.monotonic()
        self._stop = threading.Event()
        self._thread = SupervisedThread(self._run, "notifications")

    def start(self) -> None:
        """Start listening."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Return True if the loop has started a round recently; time-outs bound the duration of a round."""
        return self._thread.is_alive() and time.monotonic() - self._last_round_at < _MAX_ROUND_SECONDS

    def stop(self) -> None:
        """Stop listening."""
        self._stop.set()
        self._thread.join(2 * _BLOCKING_READ_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._last_round_at = time.monotonic()
            try:
                names = self._receive()
                if self._outage.end():
                    self._on_back()
                if names:
                    self._on_changed(names)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                self._outage.begin(error)
                self._stop.wait(random.uniform(0.5, 1))  # noqa: S311
                continue
            except redis.RedisError as error:
                # Redis rejected the command, because a permission is missing or Redis is out of memory.
                log.error("notifications cannot be read", error=str(error))
                self._stop.wait(5)
            except Exception:
                # The thread must continue. A full resync handles the lost notification.
                log.exception("notifications cannot be passed on")
                self._stop.wait(0.5)

    def _receive(self) -> set[str]:
        """Return the names of changed scorers; wait briefly for other notifications if there are none.

        Raises redis.RedisError.
        """
        # Read the set without waiting, because a notification may predate this process.
        names: set[str] = set()
        while batch := self._redis.spop(keys.HUB_CHANGED, _BATCH_SIZE):
            names |= {str(name) for name in batch}
        if not names and self._redis.blpop([keys.HUB_WAKE], timeout=_BLOCKING_READ_SECONDS):
            self._on_wake()
        return names


#: Action -> reason of the Event. Other actions create no Event.
EVENT_REASONS: Final = {
    Action.RESCORE: "Rescored",
    Action.PAUSE: "Paused",
    Action.RESUME: "Resumed",
    Action.INTERVAL: "IntervalChanged",
    Action.RESET: "ChangesReset",
}


class ChangeNotifier:
    """Creates Events for user actions, and forwards requests to read a /config to the health checks. Thread-safe.

    The processes that handle user actions must not create Events themselves. Each action gets one Event, even if no hub
    ran at its time. After a crash it may get two or none.
    """

    def __init__(
        self,
        client: redis.Redis,
        backend: Backend,
        find_scorer: Callable[[str], ObjectKey | None],
        on_sync: Callable[[ObjectKey, str], None],
    ) -> None:
        """`find_scorer` returns the key of a scorer by its name; `on_sync` gets a scorer and the id of a request."""
        self._redis = client
        self._backend = backend
        self._find_scorer = find_scorer
        self._on_sync = on_sync
        self._lock = threading.Lock()

    def notify(self) -> None:
        """Create Events for new actions. Raises redis.RedisError."""
        with self._lock:
            oldest_id = f"{int((hubclock.now() - _EVENT_LIFETIME_SECONDS) * 1000)}-0"
            stored_id = self._redis.get(keys.CHANGES_NOTIFIED)
            last_id = oldest_id if stored_id is None else max(str(stored_id), oldest_id, key=parse_change_id)
            while batch := read_after(self._redis, last_id):
                for _, change in batch:
                    if change is not None:
                        self._notify(change)
                last_id = batch[-1][0]
                run_atomically(self._redis, ("SET", keys.CHANGES_NOTIFIED, last_id))

    def _notify(self, change: Change) -> None:
        key = self._find_scorer(change.scorer)
        if key is not None and change.action is Action.SYNC:
            self._on_sync(key, change.id)
        if key is not None and change.action in EVENT_REASONS:
            self._backend.record_event(key, "Normal", EVENT_REASONS[change.action], change.sentence)
