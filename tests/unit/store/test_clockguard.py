"""After Redis' clock is set back, records from the future do not outrank or outlive newer ones."""

from __future__ import annotations

import pytest

from dsf import keys, messages
from dsf.store import clockguard
from dsf.store.clockguard import ResultsGuard, ScheduleGuard
from tests.integration.results.bed import START, ResultsHarness, handle

#: Seconds by which the clock is ahead before its correction.
AHEAD_SECONDS = 7200.0
NEW_RESULT = {"results": [({"node": "new"}, 9.0)]}


@pytest.fixture
def corrected_bed(bed: ResultsHarness) -> ResultsHarness:
    """Return the harness after the repair of a pair, whose score and object were written while the clock was ahead."""
    bed.now = START + AHEAD_SECONDS
    assert bed.cycle() == "ok"
    bed.write()
    bed.now = START
    ResultsGuard(bed.client).repair(START)
    return bed


def test_next_result_replaces_a_score_from_the_future(corrected_bed: ResultsHarness) -> None:
    assert corrected_bed.cycle(**NEW_RESULT) == "ok"
    state = corrected_bed.state()
    assert state.score is not None
    assert state.score.items == [("new", 9)]
    assert state.last_success == corrected_bed.now
    assert state.valid_until == corrected_bed.now + 300
    assert state.last_run == state.score.run


def test_next_failure_is_recorded_after_a_score_from_the_future(corrected_bed: ResultsHarness) -> None:
    assert corrected_bed.cycle(outcome="error", reason="timeout") == "error"
    state = corrected_bed.state()
    assert state.failing == 1
    assert state.failure is not None
    assert state.failure.run == state.last_run


def test_next_lost_run_is_recorded_after_a_score_from_the_future(corrected_bed: ResultsHarness) -> None:
    run = corrected_bed.open()
    corrected_bed.now += 600
    assert corrected_bed.sweep() == [keys.run_member("c1", "s1", run)]
    assert (corrected_bed.state().failing, corrected_bed.state().last_run) == (1, run)


def test_next_expired_run_is_counted_after_a_score_from_the_future(corrected_bed: ResultsHarness) -> None:
    assert corrected_bed.cycle(outcome="skipped", reason="expired") == "skipped"
    assert corrected_bed.state().expired == 1


def test_repeated_result_counts_once_after_the_correction(corrected_bed: ResultsHarness) -> None:
    run = corrected_bed.open()
    corrected_bed.now += 1
    frame = corrected_bed.frame(run)
    assert [handle(corrected_bed.ingest, frame) for _ in range(2)] == ["ok", "replayed"]


def test_open_runs_from_the_future_are_lost_at_once_and_their_results_rejected(bed: ResultsHarness) -> None:
    bed.add()
    bed.now = START + AHEAD_SECONDS
    run = bed.open()
    bed.now = START
    recent_run = bed.open("c1", "s1", deadline=AHEAD_SECONDS)
    ResultsGuard(bed.client).repair(bed.now)
    assert bed.client.zrange(keys.OPEN_RUNS, 0, -1) == [keys.run_member("c1", "s1", recent_run)]
    assert bed.state().count("lost") == 1
    # The agent sends the result of the lost run.
    assert bed.send(run) == "stale"
    assert bed.state().last_run != run
    assert bed.state().scheduled == bed.state().count("lost") + 1


def test_future_runs_of_removed_pairs_leave_no_counters(bed: ResultsHarness) -> None:
    bed.now = START + AHEAD_SECONDS
    member = keys.run_member("c1", "gone", messages.make_run_id(bed.now))
    bed.client.zadd(keys.OPEN_RUNS, {member: bed.now})
    ResultsGuard(bed.client).repair(START)
    assert not bed.client.exists(keys.pair_key("c1", "gone"))
    assert not bed.client.exists(keys.OPEN_RUNS)


def test_pairs_with_too_late_due_times_become_due_at_their_next_slot(bed: ResultsHarness) -> None:
    bed.add()
    bed.add("c2")
    bed.client.zadd(keys.DUE, {"c1/s1": START + AHEAD_SECONDS, "c2/s1": START + 10})
    ScheduleGuard(bed.client).repair(START)
    due = bed.schedule.read_due_times(["c1/s1", "c2/s1"])
    assert START < due["c1/s1"] <= START + 30
    assert due["c2/s1"] == START + 10


def test_guard_repairs_only_after_the_clock_was_set_back(bed: ResultsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = ResultsGuard(bed.client)
    repair_times: list[float] = []
    monkeypatch.setattr(guard, "repair", repair_times.append)
    monkeypatch.setattr(clockguard, "REPAIR_TIME", 0.0)
    assert not guard.check(START)
    # Two measurements may differ within the tolerance.
    assert not guard.check(START - 5)
    assert not guard.check(START + AHEAD_SECONDS)
    assert repair_times == []
    guard.check(START)
    assert repair_times == [START]
    guard.check(START + 5)
    assert repair_times == [START]


def test_guard_repairs_until_all_processes_have_measured_the_clock(bed: ResultsHarness) -> None:
    guard = ScheduleGuard(bed.client)
    guard.check(START + AHEAD_SECONDS)
    assert guard.check(START)
    # A process that has not measured the corrected clock yet writes a due time in the future.
    bed.add()
    bed.client.zadd(keys.DUE, {"c1/s1": START + AHEAD_SECONDS})
    # A second hub takes over while the repair is incomplete.
    assert ScheduleGuard(bed.client).check(START + 5)
    assert bed.schedule.read_due_times(["c1/s1"])["c1/s1"] < START + 60


def test_repair_limits_the_validity_of_a_score_from_the_future(corrected_bed: ResultsHarness) -> None:
    # A guard repeats its repair for some seconds, and the repetition must not change the repaired score.
    ResultsGuard(corrected_bed.client).repair(corrected_bed.now)
    state = corrected_bed.state()
    assert state.score is not None
    assert (state.last_success, state.valid_until) == (START, START + 300)
    assert (state.score.at, state.score.valid_until) == (START, START + 300)
    assert state.score.items == [("a", 1), ("b", 2)]
    # A later repair does not date the score again.
    corrected_bed.now += 10
    ResultsGuard(corrected_bed.client).repair(corrected_bed.now)
    assert corrected_bed.state().last_success == START


def test_score_object_is_updated_and_deleted_after_its_repaired_validity(corrected_bed: ResultsHarness) -> None:
    # The repetition of the repair must not withdraw the pending write.
    ResultsGuard(corrected_bed.client).repair(corrected_bed.now)
    assert corrected_bed.write() == [("apply", "c1", "score-of-s1")]
    corrected_bed.now += 301
    assert corrected_bed.write() == [("delete", "c1", "score-of-s1")]


def test_score_object_is_updated_after_an_equal_score(corrected_bed: ResultsHarness) -> None:
    """The object still has the validity from the future, so it is updated although its items do not change."""
    assert corrected_bed.cycle() == "ok"
    assert corrected_bed.write() == [("apply", "c1", "score-of-s1")]


def test_slightly_fast_clock_leaves_scores_unchanged(bed: ResultsHarness) -> None:
    """Clocks of two hosts may differ by less than the tolerance."""
    bed.now = START + 20
    bed.cycle()
    score_before_repair = bed.state().score
    bed.now = START
    ResultsGuard(bed.client).repair(bed.now)
    assert bed.state().score == score_before_repair
    earlier_run = messages.make_run_id(START - 5)
    # The stored run id is unchanged, too: it still outranks earlier runs.
    assert bed.send(earlier_run, outcome="error") == "replayed"
