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
    summary: ScorerSummary
    #: By time.monotonic(): when the next cycle may begin.
    deadline: float
    #: Stage -> seconds, all tries in total.
    timings: dict[str, float] = field(default_factory=dict)
    #: `series`, `bytes_in` (from the source), `bytes_out` (to the scoring API), `results`, `retries`.
    counts: dict[str, int] = field(default_factory=dict)
    #: The scoring API's response, and its time (unix seconds).
    response: ScoringResponse | None = None
    scored_at: float = 0.0
