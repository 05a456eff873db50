"""Helpers of the score writer's tests: the object of c1/s1 and the writer's counters."""

from __future__ import annotations

from dsf import keys
from tests.integration.results.bed import ResultsHarness

NAME = "score-of-s1"
APPLY, DELETE = ("apply", "c1", NAME), ("delete", "c1", NAME)


def stats(bed: ResultsHarness) -> dict[str, int]:
    """Return the writer's counters, without the factor and the time of the newest turn, which are no counters."""
    stats_fields = {str(name): str(text) for name, text in bed.client.hgetall(keys.WRITE_STATS).items()}
    return {name: int(text) for name, text in stats_fields.items() if name not in ("validity_factor", "turn_at")}
