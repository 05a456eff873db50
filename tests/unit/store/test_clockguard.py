"""The hub's clock was ahead and is corrected: records of that time do not outrank or outlive newer ones."""

from __future__ import annotations

import pytest

from dsf import keys, messages
from dsf.store import clockguard
from dsf.store.clockguard import ResultsGuard, ScheduleGuard
from tests.integration.results.bed import START, ResultsHarness, handle

AHEAD = 7200.0
NEW = {"results": [({"node": "new"}, 9.0)]}


@pytest.fixture
def back(bed: ResultsHarness) -> ResultsHarness:
    """Return a pair with a score of a clock that was two hours ahead and is now correct."""
    bed.now = START + AHEAD
    assert bed.cycle() == "ok"
    bed.write()
    bed.now = START
    ResultsGuard(bed.client).repair(START)
    return bed


def test_next_result_replaces_one_from_the_future(back: ResultsHarness) -> None:
    assert back.cycle(**NEW) == "ok"
    state = back.state()
    assert state.score is not None
    assert state.score.items == [("new", 9)]
    assert state.last_success == back.now
    assert state.valid_until == back.now + 300
    assert state.last_run == state.score.run


def test_so_is_the_next_failure(back: ResultsHarness) -> None:
    assert back.cycle(outcome="error", reason="timeout") == "error"
    state = back.state()
    assert state.failing == 1
    assert state.failure is not None
    assert state.failure.run == state.last_run


def test_so_is_the_next_lost_run(back: ResultsHarness) -> None:
    run = back.open()
    back.now += 600
    assert back.sweep() == [keys.run_member("c1", "s1", run)]
    assert (back.state().failing, back.state().last_run) == (1, run)


def test_so_is_the_next_run_that_expires_in_the_queue(back: ResultsHarness) -> None:
    assert back.cycle(outcome="skipped", reason="expired") == "skipped"
    assert back.state().expired == 1


def test_repeated_result_counts_once_after_the_correction(back: ResultsHarness) -> None:
    run = back.open()
    back.now += 1
    frame = back.frame(run)
    assert [handle(back.ingest, frame) for _ in range(2)] == ["ok", "replayed"]


def test_open_runs_of_that_time_are_lost_at_once_and_their_results_refused(bed: ResultsHarness) -> None:
    bed.add()
    bed.now = START + AHEAD
    run = bed.open()
    bed.now = START
    recent = bed.open("c1", "s1", deadline=AHEAD)
    ResultsGuard(bed.client).repair(bed.now)
    assert bed.client.zrange(keys.OPEN_RUNS, 0, -1) == [keys.run_member("c1", "s1", recent)]
    assert bed.state().count("lost") == 1
    # The agent ends the run now, which is already recorded.
    assert bed.send(run) == "stale"
    assert bed.state().last_run != run
    assert bed.state().scheduled == bed.state().count("lost") + 1


def test_runs_of_removed_pairs_leave_no_books(bed: ResultsHarness) -> None:
    bed.now = START + AHEAD
    member = keys.run_member("c1", "gone", messages.make_run_id(bed.now))
    bed.client.zadd(keys.OPEN_RUNS, {member: bed.now})
    ResultsGuard(bed.client).repair(START)
    assert not bed.client.exists(keys.pair_key("c1", "gone"))
    assert not bed.client.exists(keys.OPEN_RUNS)


def test_pairs_that_are_due_in_that_time_get_their_next_slot(bed: ResultsHarness) -> None:
    bed.add()
    bed.add("c2")
    bed.client.zadd(keys.DUE, {"c1/s1": START + AHEAD, "c2/s1": START + 10})
    ScheduleGuard(bed.client).repair(START)
    due = bed.schedule.read_due_times(["c1/s1", "c2/s1"])
    assert START < due["c1/s1"] <= START + 30
    assert due["c2/s1"] == START + 10


def test_guard_repairs_only_after_the_clock_was_set_back(bed: ResultsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = ResultsGuard(bed.client)
    repaired: list[float] = []
    monkeypatch.setattr(guard, "repair", repaired.append)
    monkeypatch.setattr(clockguard, "REPAIR_TIME", 0.0)
    assert not guard.check(START)
    # Two measurements may differ within the tolerance.
    assert not guard.check(START - 5)
    assert not guard.check(START + AHEAD)
    assert repaired == []
    guard.check(START)
    assert repaired == [START]
    guard.check(START + 5)
    assert repaired == [START]


def test_guard_repairs_until_all_processes_have_measured_the_clock(bed: ResultsHarness) -> None:
    guard = ScheduleGuard(bed.client)
    guard.check(START + AHEAD)
    assert guard.check(START)
    # Beat measured the clock after the correction.
    bed.add()
    bed.client.zadd(keys.DUE, {"c1/s1": START + AHEAD})
    # A second hub takes over before that.
    assert ScheduleGuard(bed.client).check(START + 5)
    assert bed.schedule.read_due_times(["c1/s1"])["c1/s1"] < START + 60


def test_repair_limits_the_validity_of_a_score_from_the_future(back: ResultsHarness) -> None:
    ResultsGuard(back.client).repair(back.now)
    state = back.state()
    assert state.score is not None
    assert (state.last_success, state.valid_until) == (START, START + 300)
    assert (state.score.at, state.score.valid_until) == (START, START + 300)
    assert state.score.items == [("a", 1), ("b", 2)]
    # The repair happens once: the score ages from now on.
    back.now += 10
    ResultsGuard(back.client).repair(back.now)
    assert back.state().last_success == START


def test_score_object_is_updated_and_deleted_after_its_repaired_validity(back: ResultsHarness) -> None:
    ResultsGuard(back.client).repair(back.now)
    assert back.write() == [("apply", "c1", "score-of-s1")]
    back.now += 301
    assert back.write() == [("delete", "c1", "score-of-s1")]


def test_score_object_is_updated_after_an_equal_score(back: ResultsHarness) -> None:
    """The score arrives before any process repaired the old one."""
    assert back.cycle() == "ok"
    assert back.write() == [("apply", "c1", "score-of-s1")]


def test_slightly_fast_clock_leaves_scores_unchanged(bed: ResultsHarness) -> None:
    """The clocks of two hosts differ slightly."""
    bed.now = START + 20
    bed.cycle()
    before = bed.state().score
    bed.now = START
    ResultsGuard(bed.client).repair(bed.now)
    assert bed.state().score == before
    old = messages.make_run_id(START - 5)
    assert bed.send(old, outcome="error") == "replayed"
