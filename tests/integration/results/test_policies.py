"""Scores in the backend while cycles fail again and again."""

from __future__ import annotations

from dsf.api.scorerule import FailingRule
from tests.integration.results.bed import ResultsHarness
from tests.integration.scores.writes import APPLY, NAME


def test_when_failing_value_is_written_while_cycles_fail(bed: ResultsHarness) -> None:
    bed.add(when_failing=FailingRule(failure_threshold=2, behavior="Value", value=-50))
    bed.cycle()
    bed.write()
    bed.cycle(outcome="error")
    assert bed.write() == []
    bed.cycle(outcome="error")
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": -50, "b": -50}
    # Renewed as long as it fails, far beyond the score's own validity.
    renewals = 0
    for _ in range(40):
        bed.cycle(outcome="error")
        bed.now += 29
        renewals += len(bed.write())
    assert bed.backend.scores("c1", NAME) == {"a": -50, "b": -50}
    assert 6 <= renewals <= 9
    bed.cycle()
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": 1, "b": 2}


def test_when_failing_value_applies_without_a_score_and_to_lost_runs(bed: ResultsHarness) -> None:
    bed.add(when_failing=FailingRule(failure_threshold=2, behavior="Value", value=-50))
    for _ in range(2):
        bed.open(deadline=1)
        bed.now += 100
        bed.sweep()
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"score of s1": -50}
