"""Log lines that others can cause in any number: one per kind and second, with how many were left out."""

from __future__ import annotations

import threading
import time

EVERY = 1.0


class Throttle:
    """Says which lines to log; safe for threads."""

    def __init__(self, every: float = EVERY) -> None:
        self._every = every
        self._lock = threading.Lock()
        self._last: dict[str, tuple[float, int]] = {}

    def take(self, kind: str) -> int | None:
        """None to leave this line out; else the number of lines of this kind that were left out before it."""
        now = time.monotonic()
        with self._lock:
            at, left_out = self._last.get(kind, (float("-inf"), 0))
            if now - at < self._every:
                self._last[kind] = (at, left_out + 1)
                return None
            self._last[kind] = (now, 0)
            return left_out
