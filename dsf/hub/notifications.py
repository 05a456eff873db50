"""Notifications from the results worker through Redis, and detection of Redis outages."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Final

import redis

import dsf.log
from dsf import keys
from dsf.hub.outage import Outage
from dsf.process.threads import SupervisedThread

log = dsf.log.get(__name__)

#: Seconds of one blocking pop; upper bound for `stop`.
WAIT: Final = 0.5
#: Seconds between attempts while Redis is unreachable.
RETRY: Final = 0.5
#: Seconds that one round may take; time-outs of Redis and of Sentinel are far below.
_STUCK: Final = 120.0
#: Scorers taken per round trip.
_BATCH: Final = 500


class NotificationListener:
    """One thread waiting for notifications. While Redis is unreachable only it probes."""

    def __init__(
        self,
        client: redis.Redis,
        outage: Outage,
        *,
        on_changed: Callable[[set[str]], None],
        on_wake: Callable[[], None],
        on_back: Callable[[], None],
    ) -> None:
        """`on_changed` gets names of scorers whose cycles changed between success and failure; `on_wake` is called for
        any other notification, and may raise redis.RedisError; `on_back` when Redis is reachable again."""
        self._redis = client
        self._outage = outage
        self._on_changed = on_changed
        self._on_wake = on_wake
        self._on_back = on_back
        # time.monotonic() of the newest round.
        self._alive_at = time.monotonic()
        self._stop = threading.Event()
        self._thread = SupervisedThread(self._run, "notifications")

    def start(self) -> None:
        """Start listening."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether the loop is alive; no round takes long, whatever Redis does."""
        return self._thread.is_alive() and time.monotonic() - self._alive_at < _STUCK

    def end(self) -> None:
        """Stop listening soon, without waiting for it."""
        self._stop.set()

    def stop(self) -> None:
        """Stop listening."""
        self._stop.set()
        self._thread.join(2 * WAIT)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._alive_at = time.monotonic()
            try:
                names = self._take()
                if self._outage.end():
                    self._on_back()
                if names:
                    self._on_changed(names)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                self._outage.begin(error)
                self._stop.wait(RETRY * random.uniform(1, 2))  # noqa: S311
                continue
            except redis.RedisError as error:
                # Redis refuses: a right is missing, or it is out of memory.
                log.error("notifications cannot be read", error=str(error))
                self._stop.wait(10 * RETRY)
            except Exception:
                # A full resync finds its subject; listening must go on.
                log.exception("notifications cannot be passed on")
                self._stop.wait(RETRY)

    def _take(self) -> set[str]:
        # The set first: a notification may predate this process.
        names: set[str] = set()
        while batch := self._redis.spop(keys.HUB_CHANGED, _BATCH):
            names |= {str(name) for name in batch}
        if not names and self._redis.blpop([keys.HUB_WAKE], timeout=WAIT):
            self._on_wake()
        return names
