"""What the threads of one writer ask of Redis together: a round trip for each object costs more than the object."""

from __future__ import annotations

import threading
import time

from dsf.store.writes import BURST, Finish, Writes

# Pairs whose end is noted in one round trip, and for how many seconds the first of them waits for others at most.
_FINISHED = 32
_WITHIN = 0.5
# Turns that are waited for together, one less than the burst: who comes a little late has lost none. And for how many
# seconds they are.
_TURNS = BURST - 1
_GATHER = 0.05
# Seconds after which what a writer knows of a pair is old. A change meanwhile is not lost: the pair is looked at again.
_STALE = 1.0


class Together:
    """Turns to write, asked for some at a time, and the ends of pairs, noted some at a time. Thread-safe.

    Methods raise redis.RedisError; the ends that were to be noted are then lost, and the leases of those pairs end.
    """

    def __init__(self, writes: Writes, rate: float, stopping: threading.Event) -> None:
        self._writes = writes
        self._rate = rate
        self._stopping = stopping
        self._lock = threading.Lock()
        # Of the one thread that asks for turns while the others wait for it.
        self._asking = threading.Lock()
        # Writes that may happen now.
        self._granted = 0
        self._finished: list[Finish] = []
        # By time.monotonic().
        self._first_at = 0.0

    def wait_for_budget(self, wanted: int) -> bool:
        """Wait for a turn to write; says whether that took so long that what is known is to be read again.

        `wanted` is how many writes may follow, this one included: their turns are asked for with this one.
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
                    self._stopping.wait(max(wait, min(_GATHER, (min(wanted, _TURNS) - 1) / self._rate)))
        return time.monotonic() - began > _STALE

    @property
    def is_waiting(self) -> bool:
        """Whether a thread asks for a turn to write: more threads would not write more."""
        return self._asking.locked()

    def finish(self, one: Finish) -> None:
        """Note that a pair is done with, soon."""
        now = time.monotonic()
        with self._lock:
            if not self._finished:
                self._first_at = now
            self._finished.append(one)
            is_time = len(self._finished) >= _FINISHED or now > self._first_at + _WITHIN
        if is_time:
            self.flush()

    def flush(self) -> None:
        """Note all that are done with."""
        with self._lock:
            finished, self._finished = self._finished, []
        self._writes.finish_all(finished)

    def end(self) -> None:
        """A batch is over: what is done with is noted, and no turn is kept for the next one, which comes any time."""
        with self._lock:
            self._granted = 0
        self.flush()

    def _is_granted(self) -> bool:
        with self._lock:
            is_granted = self._granted > 0
            self._granted -= is_granted
        return is_granted
