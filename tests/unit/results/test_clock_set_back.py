"""The hub's clock was ahead and is set right: what is remembered of that time outranks and outlives nothing."""

from __future__ import annotations

import threading

import pytest

from dsf import keys, messages
from dsf.results.worker import Sweeper
from dsf.store.ticks import RUN_SLACK
from tests.integration.results.bed import START, Bed, handle

AHEAD = 7200.0
NEW = {"results": [({"node": "new"}, 9.0)]}


@pytest.fixture
def back(bed: Bed) -> Bed:
    """A pair with a score of a clock that was two hours ahead, which is set right."""
    bed.now = START + AHEAD
    assert bed.cycle() == "ok"
    bed.write()
    bed.runs.set_scores_right(bed.now)
    bed.now = START
    return bed


def test_the_next_result_is_the_newest(back: Bed) -> None:
    assert back.cycle(**NEW) == "ok"
    state = back.state()
    assert state.score is not None
    assert state.score.items == [("new", 9)]
    assert state.last_success == back.now
    assert state.valid_until == back.now + 300
    assert state.last_run == state.score.run


def test_so_is_the_next_failure(back: Bed) -> None:
    assert back.cycle(outcome="error", reason="timeout") == "error"
    state = back.state()
    assert state.failing == 1
    assert state.failure is not None
    assert state.failure.run == state.last_run


def test_so_is_the_next_lost_run(back: Bed) -> None:
    run = back.open()
    back.now += 600
    assert back.sweep() == [keys.run_member("c1", "s1", run)]
    assert (back.state().failing, back.state().last_run) == (1, run)


def test_so_is_the_next_run_that_expires_in_the_queue(back: Bed) -> None:
    assert back.cycle(outcome="skipped", reason="expired") == "skipped"
    assert back.state().expired == 1


def test_the_same_result_still_counts_once(back: Bed) -> None:
    run = back.open()
    back.now += 1
    frame = back.frame(run)
    assert [handle(back.ingest, frame) for _ in range(2)] == ["ok", "replayed"]


def test_an_open_run_of_that_time_is_lost_as_soon_as_one_of_now(bed: Bed) -> None:
    """Its agent, or its tick, was lost with what put the clock right."""
    sweeper = Sweeper(bed.client, bed.settings, threading.Event())
    bed.now = START + AHEAD
    run = bed.open(deadline=30 + RUN_SLACK)
    bed.now = START
    late = bed.open("c1", "s1", deadline=AHEAD)
    for passed in (0, 60):
        bed.now = START + passed
        sweeper.set_right(bed.now)
        assert bed.sweep() == []
    bed.now = START + 30 + RUN_SLACK + bed.settings.lost_after + 1
    assert bed.sweep() == [keys.run_member("c1", "s1", run)]
    # That of a longer interval, which somebody has set, is as open as it was.
    sweeper.set_right(bed.now)
    assert bed.client.zscore(keys.OPEN_RUNS, keys.run_member("c1", "s1", late)) == START + AHEAD


def test_open_runs_of_that_time_without_an_entry_stay(bed: Bed) -> None:
    """They go with their pair."""
    bed.now = START + AHEAD
    members = [keys.run_member("c1", scorer, bed.open("c1", scorer)) for scorer in ("gone", "unreadable")]
    bed.client.hset(keys.ENTRIES, "c1/unreadable", "{")
    Sweeper(bed.client, bed.settings, threading.Event()).set_right(START)
    assert bed.client.zmscore(keys.OPEN_RUNS, members) == [START + AHEAD + 60] * 2


def test_the_score_lasts_as_long_as_one_measured_now(back: Bed) -> None:
    back.runs.set_scores_right(back.now)
    state = back.state()
    assert state.score is not None
    assert (state.last_success, state.valid_until) == (START, START + 300)
    assert (state.score.at, state.score.valid_until) == (START, START + 300)
    assert state.score.items == [("a", 1), ("b", 2)]
    # Once: it gets older from now on.
    back.now += 10
    back.runs.set_scores_right(back.now)
    assert back.state().last_success == START


def test_the_object_says_so_and_goes_when_nothing_new_comes(back: Bed) -> None:
    back.runs.set_scores_right(back.now)
    assert back.write() == [("apply", "c1", "score-of-s1")]
    back.now += 301
    assert back.write() == [("delete", "c1", "score-of-s1")]


def test_the_object_says_so_after_an_equal_score(back: Bed) -> None:
    """It came before anybody looked at the old one."""
    assert back.cycle() == "ok"
    assert back.write() == [("apply", "c1", "score-of-s1")]


def test_a_little_ahead_is_not_touched(bed: Bed) -> None:
    """Clocks of two hosts differ."""
    bed.now = START + 20
    bed.cycle()
    before = bed.state().score
    bed.now = START
    bed.runs.set_scores_right(bed.now)
    assert bed.state().score == before
    old = messages.new_run_id(START - 5)
    assert bed.send(old, outcome="error") == "replayed"
