"""How often the status of a scorer follows its cycles."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Hashable
from typing import Final, Generic, TypeVar

#: Status writes of a scorer without a wait, and the seconds between further ones.
BURST: Final = 5
EVERY: Final = 5.0

_Key = TypeVar("_Key", bound=Hashable)


class StatusPace(Generic[_Key]):
    """Delays for changed statuses: a scorer that alternates between success and failure must not write four statuses a
    second, each of which wakes all that watch the scorer. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: Scorer -> the time until which its writes are used up, at one in EVERY seconds.
        self._used_until: dict[_Key, float] = {}

    def delay(self, key: _Key) -> float:
        """Seconds until the status of this scorer may be written, at most EVERY."""
        now = self._clock()
        with self._lock:
            until = max(self._used_until.get(key, now), now) + EVERY
            delay = until - now - BURST * EVERY
            # Changes that come while one waits are written with it.
            self._used_until[key] = min(until, now + BURST * EVERY)
        return min(max(delay, 0.0), EVERY)

    def keep(self, keys: Container[_Key]) -> None:
        """Forget all other scorers."""
        with self._lock:
            self._used_until = {key: until for key, until in self._used_until.items() if key in keys}
