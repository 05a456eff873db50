"""The clock of the hub, which is that of its Redis: every time in Redis and every deadline is read on it.

`now` replaces `time.time` in every process of the hub and in the commands. `time.time` remains where the machine's own
time is meant: in the queries of an agent, which reads the data of its own cluster, and for files and certificates.
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

#: Seconds by which the clock of a machine may differ from the hub's before an operator has to act.
TOLERANCE: Final = 30.0
#: Seconds between two measurements in a process of the hub: clocks are moved rarely, and one answer is small.
HUB_INTERVAL: Final = 5.0
#: Seconds between two measurements of an agent: a thousand of them share one Redis.
AGENT_INTERVAL: Final = 60.0
#: Seconds until the next attempt after a failed measurement.
_RETRY: Final = 5.0
#: Seconds of the slowest answer that is precise enough.
_SLOWEST: Final = 2.0


class Server(Protocol):
    """The part of a Redis client that reads its time."""

    def time(self) -> tuple[int, int]:
        """Seconds and microseconds since 1970."""


class HubClock:
    """The hub's time as this process measures it; until the first measurement the time of its own machine.

    Between two measurements it advances with the monotonic clock, so that setting this machine's clock does not move
    it. Thread-safe.
    """

    def __init__(
        self,
        server: Server,
        *,
        interval: float = HUB_INTERVAL,
        own_clock: Callable[[], float] = time.time,
        on_measured: Callable[[HubClock], object] = lambda _: None,
    ) -> None:
        """`interval` in seconds between two measurements, `own_clock` gives unix seconds of this machine;
        `on_measured` is called after each measurement and may raise redis.RedisError."""
        self._server = server
        self._interval = interval
        self._own_clock = own_clock
        self._on_measured = on_measured
        # Unix seconds at which the monotonic clock was zero.
        self._epoch = own_clock() - time.monotonic()
        # time.monotonic() of the next measurement.
        self._due = 0.0
        self._is_measured = threading.Event()
        self._logged_offset = 0.0
        self._stopping = threading.Event()
        self._thread = SupervisedThread(self._run, "dsf-clock")

    def now(self) -> float:
        """Unix seconds by the hub's clock. Never waits."""
        return time.monotonic() + self._epoch if self._is_measured.is_set() else self._own_clock()

    def offset(self) -> float:
        """Return the seconds to add to the time of this machine for the hub's; negative if this machine is ahead."""
        return self.now() - self._own_clock() if self._is_measured.is_set() else 0.0

    def start(self) -> None:
        """Measure now and then periodically, in a thread."""
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
        """Measure if the last measurement is an interval old. For a process whose own loop does it instead of `start`.

        Raises redis.RedisError."""
        if time.monotonic() >= self._due:
            self.measure()
            self._log_offset()
            self._due = time.monotonic() + self._interval

    def measure(self) -> bool:
        """Ask Redis for its time; return False if the answer took too long to be used. Raises redis.RedisError."""
        # Connecting takes more round trips, which the next answer must not include. Not PING: a Redis that cannot save
        # refuses it, as it refuses writes.
        self._server.time()
        began = time.monotonic()
        seconds, microseconds = self._server.time()
        took = time.monotonic() - began
        if took > _SLOWEST:
            return False
        epoch = seconds + microseconds / 1e6 - (began + took / 2)
        # A measurement within its own error changes nothing: time would jitter by milliseconds.
        if not self._is_measured.is_set() or abs(epoch - self._epoch) > took / 2 + 0.001:
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
            pause = _RETRY
            try:
                if self.measure():
                    pause = self._interval
                    self._log_offset()
            except redis.RedisError as error:
                log.debug("the hub's clock was not read", error=str(error))
            self._stopping.wait(pause)


_process_clock: HubClock | None = None


def use(clock: HubClock | None) -> None:
    """Make this the clock of the process, which `now` reads; None for the machine's own."""
    global _process_clock  # noqa: PLW0603 - one per process, as the machine's own
    _process_clock = clock


def now() -> float:
    """Unix seconds by the hub's clock, as far as this process knows it. Never waits."""
    return time.time() if _process_clock is None else _process_clock.now()


def hub_time(client: Server) -> float:
    """Unix seconds by the hub's clock, read from Redis in one round trip. Raises redis.RedisError."""
    seconds, microseconds = client.time()
    return float(seconds) + float(microseconds) / 1e6


def described(offset: float) -> str:
    """How the clock of a machine with this `offset` (seconds, as of HubClock) differs from the hub's: `60 s behind`."""
    return f"{abs(offset):.0f} s {'behind' if offset > 0 else 'ahead of'}"
