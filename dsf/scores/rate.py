"""The rate of all writes of AddOnPlacementScores: a steady pace and a small burst (GCRA)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

#: Writes that may follow each other at once before the rate applies.
BURST: Final = 5


class WriteRate:
    """Limit on the rate of writes. The hub has one writer, so its memory is the state of the limit. Thread-safe."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`rate` in writes per second; `clock` gives seconds that never go back."""
        self._gap = 1 / rate
        self._clock = clock
        self._lock = threading.Lock()
        self._arrival = 0.0

    def take(self) -> float:
        """Take one write out of the rate; returns the seconds to wait before the next call, 0 if it was taken."""
        with self._lock:
            now = self._clock()
            arrival = max(self._arrival, now)
            wait = arrival - self._gap * (BURST - 1) - now
            if wait > 0:
                return wait
            self._arrival = arrival + self._gap
            return 0.0
