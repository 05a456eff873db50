"""One cycle and its progress."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsf.api.scoring import ScoringResponse
from dsf.api.summary import ScorerSummary


@dataclass(slots=True)
class Cycle:
    """One cycle. In memory only: after a crash the next tick starts a new one."""

    scorer: str
    run_id: str
    #: As of the current stage: a configuration change takes effect from the next stage.
    summary: ScorerSummary
    #: By time.monotonic(): when the next cycle may begin.
    deadline: float
    #: Stage -> number of retries.
    tries: dict[str, int] = field(default_factory=dict)
    #: Stage -> seconds, all tries in total.
    timings: dict[str, float] = field(default_factory=dict)
    #: `series`, `bytes_in` (from the source), `bytes_out` (to the scoring API), `results`, `retries`.
    counts: dict[str, int] = field(default_factory=dict)
    #: Whether a stage is running, and whether fetch is done: each detects duplicate messages.
    busy: bool = True
    fetched: bool = False
    #: The scoring API's response, and its time (unix seconds).
    response: ScoringResponse | None = None
    scored_at: float = 0.0
