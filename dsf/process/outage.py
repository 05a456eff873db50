"""Logs an outage once, and its end once, however many threads notice it."""

from __future__ import annotations

import threading
import time

import redis

import dsf.log

log = dsf.log.get(__name__)


class StillAwayError(redis.ConnectionError):
    """The command was not tried because of a known outage."""


class Outage:
    """Outage state of one dependency. Thread-safe."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since: float | None = None
        # Reasons logged for this outage: they may change during recovery.
        self._logged: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, error: BaseException) -> None:
        """A failure; the first one is logged, and the first with another reason."""
        if isinstance(error, StillAwayError):
            return
        with self._lock:
            if str(error) in self._logged:
                return
            self._logged.add(str(error))
            if self._since is None:
                self._since = time.monotonic()
        log.error("unreachable, will be tried again until it is back", what=self._what, error=str(error))

    def end(self) -> bool:
        """A success; the first after an outage is logged. Returns whether it was the first."""
        with self._lock:
            if self._since is None:
                return False
            seconds = round(time.monotonic() - self._since, 1)
            self._since = None
            self._logged.clear()
        log.info("reachable again", what=self._what, seconds=seconds)
        return True

    @property
    def is_on(self) -> bool:
        """True if the outage lasts."""
        return self._since is not None
