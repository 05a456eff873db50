"""Reads the hub's clock, which is the clock of its Redis. All timestamps in Redis and all deadlines use it.

`now` replaces `time.time` in all processes of the hub and in all commands. `time.time` is used only where the machine's
own time is needed: for the queries of an agent, whose data comes from its own cluster, and for files and certificates.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

import redis

import dsf.log
from dsf.process.threads import SupervisedThread

log = dsf.log.get(__name__)

#: Maximum difference in seconds between a machine's clock and the hub's; beyond it, an operator has to act.
TOLERANCE: Final = 30.0
#: Seconds between two measurements in a process of the hub.
HUB_INTERVAL: Final = 5.0
#: Seconds between two measurements in an agent; longer than in the hub, because a thousand agents share one Redis.
AGENT_INTERVAL: Final = 60.0
#: Seconds between a failed measurement and the next attempt.
_RETRY_SECONDS: Final = 5.0
#: Maximum seconds of a round trip to Redis. A measurement with a longer one is too imprecise and is discarded.
_MAX_ROUND_TRIP_SECONDS: Final = 2.0


class Server(Protocol):
    """The part of a Redis client that reads its time."""

    def time(self) -> tuple[int, int]:
        """Return seconds and microseconds since 1970."""


class HubClock:
    """Measures the hub's clock, and advances it by the monotonic clock between two measurements. Thread-safe.

    Therefore a change of this machine's clock does not affect it. Before the first measurement, it returns the time of
    this machine.
    """

    def __init__(
        self,
        server: Server,
        *,
        interval: float = HUB_INTERVAL,
        own_clock: Callable[[], float] = time.time,
        on_measured: Callable[[HubClock], object] = lambda _: None,
    ) -> None:
        """Prepare to measure the clock of `server` every `interval` seconds.

        `own_clock` returns the unix seconds of this machine. `on_measured` is called after each measurement, and may
        raise redis.RedisError.
        """
        self._server = server
        self._interval = interval
        self._own_clock = own_clock
        self._on_measured = on_measured
        # Hub's time in unix seconds when the monotonic clock was zero.
        self._epoch = own_clock() - time.monotonic()
        # Time of the next measurement by time.monotonic().
        self._next_measurement_at = 0.0
        self._is_measured = threading.Event()
        self._logged_offset = 0.0
        self._stopping = threading.Event()
        self._thread = SupervisedThread(self._run, "dsf-clock")

    def now(self) -> float:
        """Return unix seconds by the hub's clock. Never blocks."""
        return time.monotonic() + self._epoch if self._is_measured.is_set() else self._own_clock()

    def offset(self) -> float:
        """Return the hub's time minus this machine's time in seconds: negative if this machine is ahead."""
        return self.now() - self._own_clock() if self._is_measured.is_set() else 0.0

    def start(self) -> None:
        """Start a thread that measures now, and then periodically."""
        self._thread.start()

    def stop(self) -> None:
        """Stop measuring."""
        self._stopping.set()
        self._is_measured.set()
        self._thread.join(5)

    def wait(self) -> None:
        """Wait for the first measurement, or for `stop`."""
        self._is_measured.wait()

    def keep_measured(self) -> None:
        """Measure if the last measurement is an interval old. Raises redis.RedisError.

        A process may call this in its own loop instead of `start`.
        """
        if time.monotonic() >= self._next_measurement_at:
            self.measure()
            self._log_offset()
            self._next_measurement_at = time.monotonic() + self._interval

    def measure(self) -> bool:
        """Measure the offset. Return False if the response took too long. Raises redis.RedisError."""
        # Connect by a first call, so that the measured call takes a single round trip. PING would fail on a Redis that
        # cannot save its data (MISCONF).
        self._server.time()
        started_at = time.monotonic()
        seconds, microseconds = self._server.time()
        round_trip_seconds = time.monotonic() - started_at
        if round_trip_seconds > _MAX_ROUND_TRIP_SECONDS:
            return False
        epoch = seconds + microseconds / 1e6 - (started_at + round_trip_seconds / 2)
        # Ignore a change that is smaller than the error of the measurement, so that the time does not jitter.
        if not self._is_measured.is_set() or abs(epoch - self._epoch) > round_trip_seconds / 2 + 0.001:
            self._epoch = epoch
        self._is_measured.set()
        self._on_measured(self)
        return True

    def _log_offset(self) -> None:
        offset = self.offset()
        if abs(offset - self._logged_offset) > 1.0:
            self._logged_offset = offset
            log.warning(
                "this machine's clock differs from the hub's", seconds=round(-offset, 1), hint="synchronise both (NTP)"
            )

    def _run(self) -> None:
        while not self._stopping.is_set():
            pause = _RETRY_SECONDS
            try:
                if self.measure():
                    pause = self._interval
                    self._log_offset()
            except redis.RedisError as error:
                log.debug("cannot read the hub's clock", error=str(error))
            self._stopping.wait(pause)


_process_clock: HubClock | None = None


def use(clock: HubClock | None) -> None:
    """Set the clock that `now` reads in this process. With None, `now` reads this machine's clock."""
    global _process_clock  # noqa: PLW0603 - one per process, as the machine's own
    _process_clock = clock


def now() -> float:
    """Return unix seconds by the clock of `use`, or by this machine's clock without one. Never blocks."""
    return time.time() if _process_clock is None else _process_clock.now()


def read_hub_time(client: Server) -> float:
    """Return unix seconds by the hub's clock, read from Redis in one round trip. Raises redis.RedisError."""
    seconds, microseconds = client.time()
    return float(seconds) + float(microseconds) / 1e6


def describe_offset(offset: float) -> str:
    """Return a text such as `60 s behind` for an offset by `HubClock.offset` in seconds."""
    return f"{abs(offset):.0f} s {'behind' if offset > 0 else 'ahead of'}"
