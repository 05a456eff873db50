"""One cycle and its progress."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsf.api.scoring import ScoringResponse
from dsf.api.summary import ScorerSummary


@dataclass(slots=True)
class Cycle:
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
