"""How the cycles of c1/s1 ended, by its books."""

from __future__ import annotations

from dsf import keys
from tests.integration.results.bed import ResultsHarness


def books(bed: ResultsHarness) -> dict[str, int]:
    """Non-zero counts of c1/s1; they always balance."""
    state = bed.state()
    counts = {name: state.count(name) for name in ("ok", "empty", "partial", "error", "skipped", "lost")}
    assert state.scheduled == sum(counts.values()) + state.open
    assert state.open == sum(1 for m in bed.client.zrange(keys.OPEN_RUNS, 0, -1) if str(m).startswith("c1/s1/"))
    return {name: number for name, number in counts.items() if number}
