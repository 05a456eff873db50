"""This agent's running cycles: one per scorer, until its end or deadline."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Container
from typing import Final

from dsf.api.summary import ScorerSummary
from dsf.cycle.cycle import Cycle

#: Ended runs remembered of each scorer: as many as beat may repeat after an outage of Redis, which is two seconds'.
_REMEMBERED: Final = 8
#: Seconds past its cycle's deadline from which a stage counts as hanging. Every wait ends before that.
HANGS: Final = 5.0


class OverlapError(Exception):
    """Another cycle of this scorer is still running, or hangs."""


class DuplicateError(Exception):
    """Duplicate message: its cycle has ended, or its stage is running."""


class Running:
    """The cycles of this agent by scorer. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cycles: dict[str, Cycle] = {}
        # Also those that were skipped.
        self._ended: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        #: Cycles with a running stage, including replaced ones.
        self._busy: dict[int, Cycle] = {}

    def enter(self, run_id: str, summary: ScorerSummary, deadline: float) -> Cycle:
        """The running cycle of this id, or a new one. It is busy until `rest` is called.

        Raises OverlapError and DuplicateError.
        """
        with self._lock:
            current = self._cycles.get(summary.name)
            if current is not None and current.run_id == run_id:
                if current.busy:
                    raise DuplicateError
                current.summary = summary
                current.busy = True
                self._busy[id(current)] = current
                return current
            ended = self._ended[summary.name]
            if run_id in ended:
                raise DuplicateError
            now = time.monotonic()
            # A custom source may hang for ever: with a thread for each tick it would use up the pool.
            if (current is not None and current.deadline > now) or any(
                cycle.scorer == summary.name and cycle.deadline < now - HANGS for cycle in self._busy.values()
            ):
                ended.append(run_id)
                raise OverlapError
            cycle = self._cycles[summary.name] = Cycle(summary.name, run_id, summary, deadline)
            self._busy[id(cycle)] = cycle
            return cycle

    def leave(self, scorer: str, run_id: str) -> None:
        """The cycle has ended; the next one of its scorer may begin."""
        with self._lock:
            current = self._cycles.get(scorer)
            if current is not None and current.run_id == run_id:
                del self._cycles[scorer]
                self._ended[scorer].append(run_id)

    def knows(self, scorer: str, run_id: str) -> bool:
        """Whether this cycle is running, has ended, or was skipped."""
        with self._lock:
            current = self._cycles.get(scorer)
            return (current is not None and current.run_id == run_id) or run_id in self._ended.get(scorer, ())

    def rest(self, cycle: Cycle) -> None:
        """A stage of the cycle has ended."""
        with self._lock:
            cycle.busy = False
            self._busy.pop(id(cycle), None)

    def stuck(self) -> int:
        """Number of hanging stages."""
        latest = time.monotonic() - HANGS
        with self._lock:
            return sum(cycle.deadline < latest for cycle in self._busy.values())

    def end_others(self, scorers: Container[str]) -> list[Cycle]:
        """End cycles of all other scorers with a running stage (their deadline is now); returns them."""
        now = time.monotonic()
        with self._lock:
            others = [cycle for cycle in self._busy.values() if cycle.scorer not in scorers and cycle.deadline > now]
            for cycle in others:
                cycle.deadline = now
        return others

    def purge(self) -> list[str]:
        """Forget cycles past their deadline (their message was lost); returns their ids."""
        now = time.monotonic()
        with self._lock:
            over = [cycle for cycle in self._cycles.values() if cycle.deadline <= now]
            for cycle in over:
                del self._cycles[cycle.scorer]
        return [cycle.run_id for cycle in over]
