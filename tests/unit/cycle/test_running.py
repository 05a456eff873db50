"""Which cycles run in an agent at the same time."""

from __future__ import annotations

import time

import pytest

from dsf.api.summary import ScorerSummary
from dsf.cycle.cycle import Cycle, RunningCycles


def cycle(scorer: str = "a", run_id: str = "1", left: float = 60.0) -> Cycle:
    return Cycle(scorer, run_id, ScorerSummary.model_construct(name=scorer), time.monotonic() + left)


@pytest.mark.parametrize(
    ("left", "may"),
    [
        # Still running.
        (60.0, False),
        # Its time is over: it ends in this moment.
        (-1.0, True),
        # A plug-in hangs: each tick would take one more thread.
        (-6.0, False),
    ],
)
def test_one_cycle_of_a_scorer_at_a_time(left: float, may: bool) -> None:
    running, first, other = RunningCycles(), cycle(left=left), cycle("b", "2")
    assert running.enter(first)
    assert running.enter(other)
    assert running.enter(cycle(run_id="3")) is may
    if not may:
        running.leave(first)
        assert running.enter(cycle(run_id="4"))


def test_a_tick_that_comes_twice() -> None:
    running = RunningCycles()
    assert [running.is_new("a", run) for run in ("1", "1", "2")] == [True, False, True]
    assert running.is_new("b", "2")


def test_cycles_of_removed_scorers_end_now() -> None:
    running, gone, stays = RunningCycles(), cycle(), cycle("b", "2")
    assert running.enter(gone)
    assert running.enter(stays)
    assert running.end_others({"b"}) == [gone]
    assert gone.deadline <= time.monotonic() < stays.deadline
    assert running.end_others({"b"}) == []
