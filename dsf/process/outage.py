"""Logs the start and the end of an outage once, even if many threads detect it."""

from __future__ import annotations

import threading
import time

import redis

import dsf.log

log = dsf.log.get(__name__)


class KnownOutageError(redis.ConnectionError):
    """The command was not sent, because an outage is already recorded."""


class Outage:
    """Tracks and logs the outage of one dependency. Thread-safe."""

    def __init__(self, dependency: str) -> None:
        self._dependency = dependency
        self._began_at: float | None = None
        # Logged error texts of this outage. The error may change during the recovery.
        self._logged_errors: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, error: BaseException) -> None:
        """Record a failure, which starts an outage. Logs each different error once per outage."""
        if isinstance(error, KnownOutageError):
            return
        with self._lock:
            if str(error) in self._logged_errors:
                return
            self._logged_errors.add(str(error))
            if self._began_at is None:
                self._began_at = time.monotonic()
        log.error("unreachable, will be tried again until it is back", what=self._dependency, error=str(error))

    def end(self) -> bool:
        """Record a success, which ends an outage. Logs and returns True if there was one."""
        with self._lock:
            if self._began_at is None:
                return False
            seconds = round(time.monotonic() - self._began_at, 1)
            self._began_at = None
            self._logged_errors.clear()
        log.info("reachable again", what=self._dependency, seconds=seconds)
        return True

    @property
    def is_on(self) -> bool:
        """True during an outage."""
        return self._began_at is not None
