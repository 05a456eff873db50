"""One cycle and its progress, and the cycles that run: one per scorer, until its end or its deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Container
from dataclasses import dataclass, field

from dsf.api.scoring import ScoringResponse
from dsf.api.summary import ScorerSummary


@dataclass(slots=True)
class Cycle:
    """One cycle. In memory only: after a crash the next tick starts a new one."""

    scorer: str
    run_id: str
    summary: ScorerSummary
    #: By time.monotonic(): when the next cycle may begin.
    deadline: float
    #: The end of the sources' time range, in unix seconds; None: now. A backtest asks for the past.
    until: float | None = None
    #: Stage -> seconds, all tries in total.
    timings: dict[str, float] = field(default_factory=dict)
    #: `series`, `bytes_in` (from the source), `bytes_out` (to the scoring API), `results`, `retries`.
    counts: dict[str, int] = field(default_factory=dict)
    #: The scoring API's response, and its time (unix seconds).
    response: ScoringResponse | None = None
    scored_at: float = 0.0


class RunningCycles:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Run id -> cycle, also one that runs beyond its deadline.
        self._cycles: dict[str, Cycle] = {}
        #: Scorer -> its newest run.
        self._newest: dict[str, str] = {}

    def is_new(self, scorer: str, run_id: str) -> bool:
        """Note the run; whether it is another one than the scorer's last: a message may come twice."""
        with self._lock:
            if self._newest.get(scorer) == run_id:
                return False
            self._newest[scorer] = run_id
            return True

    def enter(self, cycle: Cycle) -> bool:
        """Begin this cycle; False if another one of its scorer is still running, or hangs."""
        now = time.monotonic()
        with self._lock:
            for other in self._cycles.values():
                # One that hangs keeps its thread, and a next one for each tick would use up all others. Every wait of
                # our own ends within 5 s of the deadline.
                if other.scorer == cycle.scorer and not other.deadline <= now <= other.deadline + 5.0:
                    return False
            self._cycles[cycle.run_id] = cycle
            return True

    def leave(self, cycle: Cycle) -> None:
        """The cycle has ended: the next one of its scorer may begin."""
        with self._lock:
            self._cycles.pop(cycle.run_id, None)

    def end_others(self, scorers: Container[str]) -> list[Cycle]:
        """End the cycles of all other scorers (their deadline is now); returns them."""
        now = time.monotonic()
        with self._lock:
            others = [cycle for cycle in self._cycles.values() if cycle.scorer not in scorers and cycle.deadline > now]
            for cycle in others:
                cycle.deadline = now
            for scorer in [scorer for scorer in self._newest if scorer not in scorers]:
                del self._newest[scorer]
        return others
