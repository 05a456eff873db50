"""The hub's time, as estimated by this agent.

A tick expires by the hub's clock. An agent whose clock is ahead would drop fresh ticks, and one whose clock is behind
would run stale ones, so the agent measures the offset to Redis' clock (`TIME`) and corrects for it. Results still carry
the agent's own time: the hub refuses an agent whose clock is too far off, and reports it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import redis

import dsf.log
from dsf.process.threads import SupervisedThread

log = dsf.log.get(__name__)


class HubClock:
    """Measures in its own thread; uses the agent's clock until the first measurement."""

    def __init__(self, client: redis.Redis, clock: Callable[[], float] = time.time) -> None:
        self._redis = client
        self._clock = clock
        self._offset = 0.0
        self._is_refused = False
        self._stop = threading.Event()
        self._thread = SupervisedThread(self._run, "dsf-clock")

    @property
    def offset(self) -> float:
        """Seconds to add to the agent's clock."""
        return self._offset

    def now(self) -> float:
        """Unix seconds on the hub's clock. Never waits."""
        return self._clock() + self._offset

    def start(self) -> None:
        """Measure now and then periodically."""
        self._thread.start()

    def stop(self) -> None:
        """Stop measuring."""
        self._stop.set()
        self._thread.join(5)

    def measure(self) -> bool:
        """Ask Redis for its time; says whether the answer was of use. Raises redis.RedisError."""
        # So that the next answer is not that to connecting, which takes more round trips.
        self._redis.ping()
        # First: a process that stands still between the two has taken that long.
        began = time.monotonic()
        asked = self._clock()
        seconds, microseconds = self._redis.time()
        took = time.monotonic() - began
        # The time in a slower answer (seconds) is too imprecise.
        if took > 2.0:
            return False
        before, self._offset = self._offset, seconds + microseconds / 1e6 - (asked + took / 2)
        if abs(self._offset - before) > 1.0:
            log.warning(
                "this clock differs from the hub's", seconds=round(-self._offset, 1), hint="synchronise it (NTP)"
            )
        return True

    def _run(self) -> None:
        while not self._stop.is_set():
            # A clock drifts by milliseconds in a minute.
            self._stop.wait(60.0 if self._try() else 5.0)

    def _try(self) -> bool:
        """Measure; False if it shall be tried again soon."""
        try:
            return self.measure()
        except redis.exceptions.NoPermissionError:
            if not self._is_refused:
                log.warning("the hub's clock cannot be read, this agent's own counts", hint="allow +time in its ACL")
                self._is_refused = True
            return True
        except redis.RedisError as error:
            log.debug("the hub's clock was not read", error=str(error))
            return False
