"""Batches the Redis requests of one writer's threads: a round trip per object costs more than the object."""

from __future__ import annotations

import threading
import time

from dsf.store.writes import BURST, Finish, Writes

# Max. seconds that a finished pair waits for others, to be recorded in the same round trip.
_WITHIN = 0.5
# Turns requested together, one less than the burst: a slightly late request loses none.
_TURNS = BURST - 1


class Together:
    """Batched requests for write turns, and batched finishes of pairs. Thread-safe.

    Methods raise redis.RedisError; pending finishes are then lost, and the leases of those pairs expire.
    """

    def __init__(self, writes: Writes, rate: float, stopping: threading.Event) -> None:
        self._writes = writes
        self._rate = rate
        self._stopping = stopping
        self._lock = threading.Lock()
        # Held by the thread that requests turns while the others wait.
        self._asking = threading.Lock()
        # Writes allowed now.
        self._granted = 0
        self._finished: list[Finish] = []
        # By time.monotonic().
        self._first_at = 0.0

    def wait_for_budget(self, wanted: int) -> bool:
        """Wait for a turn to write; returns whether facts have become stale meanwhile.

        `wanted` is the number of writes that may follow, this one included: their turns are requested together.
        """
        began = time.monotonic()
        with self._asking:
            while not self._is_granted() and not self._stopping.is_set():
                granted, wait = self._writes.take_budget(self._rate, min(wanted, BURST))
                with self._lock:
                    self._granted += granted
                if not granted:
                    if wait > _WITHIN:
                        self.flush()
                    self._stopping.wait(max(wait, min(0.05, (min(wanted, _TURNS) - 1) / self._rate)))
        # A change meanwhile is not lost: the pair is checked again.
        return time.monotonic() - began > 1.0

    @property
    def is_waiting(self) -> bool:
        """Whether a thread is requesting turns: more threads would not write more."""
        return self._asking.locked()

    def finish(self, pair: Finish) -> None:
        """Record a pair as finished, soon."""
        now = time.monotonic()
        with self._lock:
            if not self._finished:
                self._first_at = now
            self._finished.append(pair)
            is_time = len(self._finished) >= 32 or now > self._first_at + _WITHIN
        if is_time:
            self.flush()

    def flush(self) -> None:
        """Record all finished pairs."""
        with self._lock:
            finished, self._finished = self._finished, []
        self._writes.finish_all(finished)

    def end(self) -> None:
        """End a batch: record finished pairs, and keep no turn for the next batch, which may come any time."""
        with self._lock:
            self._granted = 0
        self.flush()

    def _is_granted(self) -> bool:
        with self._lock:
            is_granted = self._granted > 0
            self._granted -= is_granted
        return is_granted
