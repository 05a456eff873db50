"""Rate limit of log lines that clients can cause: one per kind and second, with the number of omitted ones."""

from __future__ import annotations

import threading
import time

EVERY = 1.0


class Throttle:
    """Decides which lines to log. Thread-safe."""

    def __init__(self, every: float = EVERY) -> None:
        self._every = every
        self._lock = threading.Lock()
        self._last: dict[str, tuple[float, int]] = {}

    def take(self, kind: str) -> int | None:
        """None to omit this line; else the number of omitted lines of this kind before it."""
        now = time.monotonic()
        with self._lock:
            at, left_out = self._last.get(kind, (float("-inf"), 0))
            if now - at < self._every:
                self._last[kind] = (at, left_out + 1)
                return None
            self._last[kind] = (now, 0)
            return left_out
