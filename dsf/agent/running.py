"""Which cycles run in this agent: one per scorer, until it ends or its deadline passes."""

from __future__ import annotations

import threading
import time
from collections.abc import Container
from typing import Final

from dsf.api.summary import ScorerSummary
from dsf.cycle.cycle import Cycle

#: Seconds past its cycle's deadline after which a stage hangs. All that waits for something waits until then at most.
HANGS: Final = 5.0


class OverlapError(Exception):
    """Another cycle of this scorer is still running, or hangs."""


class DuplicateError(Exception):
    """This message came twice: its cycle has ended already, or its stage runs right now."""


class Running:
    """The cycles of this agent by scorer. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cycles: dict[str, Cycle] = {}
        self._ended: dict[str, str] = {}
        #: Cycles one stage of which goes on, also those that another one has replaced.
        self._busy: dict[int, Cycle] = {}

    def enter(self, run_id: str, summary: ScorerSummary, deadline: float) -> Cycle:
        """The cycle of this id: the one that is going on, or a new one. It is busy until `rest` is called.

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
            if self._ended.get(summary.name) == run_id:
                raise DuplicateError
            now = time.monotonic()
            if current is not None and current.deadline > now:
                raise OverlapError
            # A source of somebody's own may hang for ever: one thread for each of its ticks would be all of them.
            if any(cycle.scorer == summary.name and cycle.deadline < now - HANGS for cycle in self._busy.values()):
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
                self._ended[scorer] = run_id

    def rest(self, cycle: Cycle) -> None:
        """A stage of the cycle has ended."""
        with self._lock:
            cycle.busy = False
            self._busy.pop(id(cycle), None)

    def stuck(self) -> int:
        """How many stages hang."""
        latest = time.monotonic() - HANGS
        with self._lock:
            return sum(cycle.deadline < latest for cycle in self._busy.values())

    def end_others(self, scorers: Container[str]) -> list[Cycle]:
        """The cycles of scorers that are none of these, with a stage that goes on; their time is over from now on."""
        now = time.monotonic()
        with self._lock:
            others = [cycle for cycle in self._busy.values() if cycle.scorer not in scorers and cycle.deadline > now]
            for cycle in others:
                cycle.deadline = now
        return others

    def purge(self) -> list[str]:
        """Forget cycles whose deadline has passed (their message was lost) and return their ids."""
        now = time.monotonic()
        with self._lock:
            over = [cycle for cycle in self._cycles.values() if cycle.deadline <= now]
            for cycle in over:
                del self._cycles[cycle.scorer]
        return [cycle.run_id for cycle in over]
