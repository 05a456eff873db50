"""What stands in the backend when there are no results, or when cycles fail again and again."""

from __future__ import annotations

import time

from dsf.store.registry import EmptyRule, FailingRule
from tests.integration.results.bed import Bed
from tests.integration.results.writes import APPLY, DELETE, NAME


def test_when_empty(bed: Bed) -> None:
    bed.cycle(outcome="empty")
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {}
    bed.add(when_empty=EmptyRule(behavior="Value", value=-100), dimension_format="${node}-of-${cluster}")
    bed.writes.touch("c1", "s1")
    bed.now = time.time()
    bed.cycle(outcome="empty")
    bed.write()
    assert bed.backend.scores("c1", NAME) == {"-of-c1": -100}
    bed.add(when_empty=EmptyRule(behavior="Value", value=-100), dimension_format="${node}")
    bed.writes.touch("c1", "s1", forget_written=True)
    bed.now = time.time()
    bed.write()
    assert bed.backend.scores("c1", NAME) == {"score of s1": -100}


def test_when_failing_value(bed: Bed) -> None:
    bed.add(when_failing=FailingRule(failure_threshold=2, behavior="Value", value=-50))
    bed.cycle()
    bed.write()
    bed.cycle(outcome="error")
    assert bed.write() == []
    bed.cycle(outcome="error")
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"a": -50, "b": -50}
    # Renewed for as long as it fails, far beyond the score's own validity.
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


def test_when_failing_value_without_any_score_and_by_losses(bed: Bed) -> None:
    bed.add(when_failing=FailingRule(failure_threshold=2, behavior="Value", value=-50))
    for _ in range(2):
        bed.open(deadline=1)
        bed.now += 100
        bed.sweep()
    assert bed.write() == [APPLY]
    assert bed.backend.scores("c1", NAME) == {"score of s1": -50}


def test_when_failing_remove(bed: Bed) -> None:
    bed.add(when_failing=FailingRule(failure_threshold=1, behavior="Remove"))
    bed.cycle()
    bed.write()
    bed.cycle(outcome="error")
    assert bed.write() == [DELETE]
    bed.cycle()
    assert bed.write() == [APPLY]
