"""Which cycles run in this agent: one per scorer, until it ends or its deadline passes."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from dsf.api.scoring import ScoringResponse
from dsf.api.summary import ScorerSummary


@dataclass(slots=True)
class Run:
    """One cycle. It is in memory: after a crash the next tick starts a new one."""

    scorer: str
    run_id: str
    #: As of the stage that runs now: a change of the configuration counts from the next stage on.
    summary: ScorerSummary
    #: On the clock of time.monotonic(): the moment at which the next cycle may begin.
    deadline: float
    #: Stage -> how often it was tried again.
    tries: dict[str, int] = field(default_factory=dict)
    #: Stage -> seconds, all tries together.
    timings: dict[str, float] = field(default_factory=dict)
    #: `series`, `bytes_in` (from the source), `bytes_out` (to the scoring API), `results`, `retries`.
    counts: dict[str, int] = field(default_factory=dict)
    #: Whether a stage runs now, and whether fetch is done: a second copy of a message finds either.
    busy: bool = True
    fetched: bool = False
    #: What the scoring API answered, and when (unix seconds).
    response: ScoringResponse | None = None
    scored_at: float = 0.0


class OverlapError(Exception):
    """Another cycle of this scorer is still running."""


class DuplicateError(Exception):
    """This message came twice: its cycle has ended already, or its stage runs right now."""


class Running:
    """The cycles of this agent by scorer. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, Run] = {}
        self._ended: dict[str, str] = {}

    def enter(self, run_id: str, summary: ScorerSummary, deadline: float) -> Run:
        """The run of this id: the one that is going on, or a new one. It is busy until the caller says otherwise.

        Raises OverlapError and DuplicateError.
        """
        with self._lock:
            current = self._runs.get(summary.name)
            if current is not None and current.run_id == run_id:
                if current.busy:
                    raise DuplicateError
                current.summary = summary
                current.busy = True
                return current
            if self._ended.get(summary.name) == run_id:
                raise DuplicateError
            if current is not None and current.deadline > time.monotonic():
                raise OverlapError
            run = self._runs[summary.name] = Run(summary.name, run_id, summary, deadline)
            return run

    def leave(self, scorer: str, run_id: str) -> None:
        """The run has ended; the next one of its scorer may begin."""
        with self._lock:
            current = self._runs.get(scorer)
            if current is not None and current.run_id == run_id:
                del self._runs[scorer]
                self._ended[scorer] = run_id

    def seconds_left(self, scorer: str) -> float:
        """Until the deadline of the scorer's run; 0 when none goes on or the deadline has passed."""
        with self._lock:
            current = self._runs.get(scorer)
        return 0.0 if current is None else max(0.0, current.deadline - time.monotonic())

    def purge(self) -> list[str]:
        """Forget runs whose deadline has passed (their message was lost) and return their ids."""
        now = time.monotonic()
        with self._lock:
            over = [run for run in self._runs.values() if run.deadline <= now]
            for run in over:
                del self._runs[run.scorer]
        return [run.run_id for run in over]
