"""Cycles that expire in a cluster's queue: not failures, but a reason for a missing score."""

from __future__ import annotations

import pytest

from tests.integration.results.bed import ResultsHarness
from tests.integration.results.books import books


def test_cycles_that_only_expire_are_a_reason_after_three(bed: ResultsHarness) -> None:
    bed.cycle()
    bed.news()
    for number in range(1, 6):
        bed.cycle(outcome="skipped", reason="expired")
        assert bed.state().expired == number
        assert bed.news() == ({"s1"} if number == 3 else set())
        assert (bed.state().current_failure is not None) == (number >= 3)
    failure = bed.state().current_failure
    assert failure is not None
    assert (failure.reason, failure.run, failure.at) == ("expired", bed.history()[0].run, bed.now)
    # Other skips neither count nor end the series, and no skip is a failed cycle.
    bed.cycle(outcome="skipped", reason="overlap")
    assert (bed.state().expired, bed.state().failing) == (5, 0)
    assert bed.cycle() == "ok"
    assert (bed.state().expired, bed.state().current_failure, bed.news()) == (0, None, {"s1"})
    assert books(bed) == {"ok": 2, "skipped": 6}


@pytest.mark.parametrize("outcome", ["error", "empty", "partial"])
def test_executed_cycle_overrides_expired_ones(bed: ResultsHarness, outcome: str) -> None:
    for _ in range(4):
        bed.cycle(outcome="skipped", reason="expired")
    bed.cycle(outcome=outcome)
    failure = bed.state().current_failure
    assert bed.state().expired == 0
    assert (failure.reason if failure else "") == ("timeout" if outcome == "error" else "")


def test_lost_run_overrides_expired_ones(bed: ResultsHarness) -> None:
    for _ in range(3):
        bed.cycle(outcome="skipped", reason="expired")
    run = bed.open(deadline=1)
    bed.now += 100
    bed.sweep()
    failure = bed.state().current_failure
    assert failure is not None
    assert (failure.reason, failure.run) == ("lost", run)
    # The agent runs the cycle much too late, which adds no record.
    assert bed.send(run, outcome="skipped", reason="expired") == "late"
    assert bed.state().expired == 0
