"""Limits the rate of all AddOnPlacementScore writes to a steady pace with a small burst (GCRA)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

#: Writes that may follow each other immediately before the rate applies.
BURST: Final = 5


class WriteRate:
    """Limit on the rate of writes. Its state is in memory, because the hub has one writer. Thread-safe."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`rate` in writes per second; `clock` returns seconds that never decrease."""
        self._seconds_per_write = 1 / rate
        self._clock = clock
        self._lock = threading.Lock()
        self._next_arrival = 0.0

    def take(self) -> float:
        """Reserve one write; return 0, or the seconds to wait before the next call if no write is available."""
        with self._lock:
            now = self._clock()
            arrival = max(self._next_arrival, now)
            wait_seconds = arrival - self._seconds_per_write * (BURST - 1) - now
            if wait_seconds > 0:
                return wait_seconds
            self._next_arrival = arrival + self._seconds_per_write
            return 0.0
