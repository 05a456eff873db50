"""One cycle per scorer at a time."""

from __future__ import annotations

import time

import pytest

from dsf.agent.running import HANGS, DuplicateError, OverlapError, Running
from dsf.api.summary import ScorerSummary


def summary(name: str = "a", score_name: str = "s") -> ScorerSummary:
    return ScorerSummary(name=name, score_name=score_name)


def soon() -> float:
    return time.monotonic() + 60


def test_the_same_run_goes_on_with_the_newest_summary() -> None:
    running = Running()
    run = running.enter("1", summary(), soon())
    run.busy = False
    again = running.enter("1", summary(score_name="t"), soon())
    assert again is run
    assert run.summary.score_name == "t"


def test_another_run_of_the_scorer_overlaps_until_the_first_has_ended() -> None:
    running = Running()
    running.enter("1", summary(), soon())
    with pytest.raises(OverlapError):
        running.enter("2", summary(), soon())
    running.enter("2", summary("b"), soon())
    running.leave("a", "2")
    with pytest.raises(OverlapError):
        running.enter("3", summary(), soon())
    running.leave("a", "1")
    running.enter("4", summary(), soon())


def test_runs_that_ended_or_were_skipped_are_known() -> None:
    running = Running()
    running.enter("1", summary(), soon())
    with pytest.raises(OverlapError):
        running.enter("2", summary(), soon())
    assert [running.knows("a", run) for run in "123"] == [True, True, False]
    running.leave("a", "1")
    assert [running.knows("a", run) for run in "123"] == [True, True, False]
    assert not running.knows("b", "1")
    for run in "12":
        with pytest.raises(DuplicateError):
            running.enter(run, summary(), soon())
    # The last ones only.
    for number in range(20):
        running.enter(f"x{number}", summary(), soon())
        running.leave("a", f"x{number}")
    assert [running.knows("a", run) for run in ("1", "x10", "x19")] == [False, False, True]


def test_a_message_that_came_twice_is_recognised() -> None:
    running = Running()
    run = running.enter("1", summary(), soon())
    with pytest.raises(DuplicateError):
        running.enter("1", summary(), soon())
    run.busy = False
    running.leave("a", "1")
    with pytest.raises(DuplicateError):
        running.enter("1", summary(), soon())


def test_a_run_whose_deadline_has_passed_blocks_nobody() -> None:
    running = Running()
    running.enter("1", summary(), time.monotonic() - 1)
    running.enter("2", summary(), soon())
    running.leave("a", "1")
    with pytest.raises(OverlapError):
        running.enter("3", summary(), soon())
    running.enter("4", summary("b"), time.monotonic() - 1)
    assert running.purge() == ["4"]
    assert running.purge() == []


def test_a_stage_that_goes_on_after_its_run_hangs() -> None:
    running = Running()
    old = running.enter("1", summary(), time.monotonic() - 1)
    running.enter("2", summary(), soon())
    assert running.stuck() == 0
    old.deadline -= HANGS
    assert running.stuck() == 1
    running.rest(old)
    assert running.stuck() == 0


def test_runs_of_scorers_that_were_removed_are_over() -> None:
    running = Running()
    gone, stays = running.enter("1", summary("a"), soon()), running.enter("2", summary("b"), soon())
    assert running.end_others({"b"}) == [gone]
    assert gone.deadline <= time.monotonic() < stays.deadline
    assert running.end_others({"b"}) == []


def test_a_scorer_that_hangs_takes_one_thread_and_no_more() -> None:
    running = Running()
    hanging = running.enter("1", summary(), time.monotonic() - HANGS - 1)
    for number in range(2, 5):
        with pytest.raises(OverlapError):
            running.enter(str(number), summary(), soon())
    running.enter("2", summary("b"), soon())
    assert running.stuck() == 1
    running.rest(hanging)
    running.enter("5", summary(), soon())
