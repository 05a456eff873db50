"""Pacing of work that is cheaper in batches: a few steps at once, then one per interval."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pacer:
    """Says how long to wait for the next step: one per `every` seconds, and up to `burst` more after a pause. So what
    comes alone need not wait, and a lasting stream is batched. The generic cell rate algorithm (ITU-T I.371).

    Not thread-safe. `clock` gives seconds.
    """

    def __init__(self, every: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._tolerance = burst * every
        self._clock = clock
        # When an even stream of steps would have its next one.
        self._expected_at = float("-inf")

    def left(self) -> float:
        """Seconds until a step may begin; not positive if it may now."""
        return self._expected_at - self._tolerance - self._clock()

    def step(self) -> None:
        """A step begins, also one that did not wait: the next one waits for one interval at most."""
        now = self._clock()
        self._expected_at = min(max(self._expected_at, now), now + self._tolerance) + self._every
