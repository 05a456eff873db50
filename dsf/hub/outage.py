"""Says once that something is away, and once that it is back, however many notice it."""

from __future__ import annotations

import threading
import time

import redis

import dsf.log

log = dsf.log.get(__name__)


class StillAwayError(redis.ConnectionError):
    """Not tried, because it is known to be away."""


class Outage:
    """The state of one thing that may be away. Thread-safe."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since: float | None = None
        # What was said of this outage: the reason may change while it is mended.
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, error: BaseException) -> None:
        """It failed; the first to notice logs it, and the first to notice another reason."""
        if isinstance(error, StillAwayError):
            return
        with self._lock:
            if str(error) in self._said:
                return
            self._said.add(str(error))
            if self._since is None:
                self._since = time.monotonic()
        log.error("unreachable, will be tried again until it is back", what=self._what, error=str(error))

    def end(self) -> bool:
        """It works; the first to notice after an outage logs it. Says whether this was the first."""
        with self._lock:
            if self._since is None:
                return False
            seconds = round(time.monotonic() - self._since, 1)
            self._since = None
            self._said.clear()
        log.info("reachable again", what=self._what, seconds=seconds)
        return True

    @property
    def is_on(self) -> bool:
        """Whether it is away now."""
        return self._since is not None
