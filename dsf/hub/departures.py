"""What is gone for a moment, and how long it is still kept for its return.

A ManagedClusterAddOn that flaps, a ManagedCluster or a configuration that is deleted and made again would otherwise
cost all clusters their scores, histories and credentials.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Departures:
    """Thread-safe. It begins anew with this process: a restart keeps things longer, never shorter."""

    def __init__(self, grace: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`grace` in seconds."""
        self._grace = grace
        self._clock = clock
        self._lock = threading.Lock()
        self._since: dict[str, float] = {}

    def left(self, name: str) -> float:
        """Seconds for which this is still kept; the first call begins its grace."""
        with self._lock:
            now = self._clock()
            return max(0.0, self._since.setdefault(name, now) + self._grace - now)

    def forget(self, name: str) -> None:
        """It is back, or everything of it is removed."""
        with self._lock:
            self._since.pop(name, None)
