"""Runs without a result."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from dsf import keys
from dsf.results.worker import Sweeper
from dsf.store.client import connect
from tests.integration.results.bed import ResultsHarness
from tests.support.wait import PATIENCE, wait_for


def test_run_is_lost_after_its_deadline_only(bed: ResultsHarness) -> None:
    run = bed.open(deadline=60)
    bed.now += 60 + bed.settings.lost_after - 1
    assert bed.sweep() == []
    bed.now += 2
    assert bed.sweep() == [f"c1/s1/{run}"]
    state = bed.state()
    assert (state.count("lost"), state.open, state.failing, state.last_run) == (1, 0, 1, run)
    assert state.failure is not None
    assert (state.failure.stage, state.failure.reason, state.failure.run) == ("", "lost", run)
    assert "c1" in state.failure.message
    (entry,) = bed.history()
    assert (entry.run, entry.outcome, entry.reason) == (run, "lost", "lost")
    assert bed.news() == {"s1"}
    assert bed.sweep() == []


def test_older_lost_run_does_not_fail_the_pair(bed: ResultsHarness) -> None:
    bed.open(deadline=1)
    bed.now += 30
    bed.cycle()
    bed.news()
    bed.now += 100
    assert len(bed.sweep()) == 1
    state = bed.state()
    assert (state.failing, state.failure, state.count("lost")) == (0, None, 1)
    assert bed.news() == set()


def test_consecutive_losses_are_notified_once(bed: ResultsHarness) -> None:
    for _ in range(3):
        bed.open(deadline=1)
        bed.now += 100
        bed.sweep()
    assert (bed.state().failing, bed.news()) == (3, {"s1"})
    bed.open(deadline=1)
    bed.now += 100
    bed.sweep()
    assert (bed.state().failing, bed.news()) == (4, set())


def test_runs_of_removed_pairs_are_forgotten(bed: ResultsHarness) -> None:
    bed.open(deadline=1)
    bed.client.hdel(keys.ENTRIES, "c1/s1")
    bed.now += 100
    assert bed.sweep() == []
    assert bed.client.zcard(keys.OPEN_RUNS) == 0


def test_lost_runs_are_remembered_for_an_hour(bed: ResultsHarness) -> None:
    bed.open(deadline=1)
    bed.now += 100
    bed.sweep()
    assert bed.client.zcard(keys.LOST_RUNS) == 1
    bed.now += 3599
    bed.sweep()
    assert bed.client.zcard(keys.LOST_RUNS) == 1
    bed.now += 2
    bed.sweep()
    assert bed.client.zcard(keys.LOST_RUNS) == 0


def test_many_workers_declare_each_run_once(bed: ResultsHarness) -> None:
    for n in range(1500):
        bed.now += 0.01
        bed.open("c1", "s1", deadline=n % 5)
    bed.now += 1000
    with ThreadPoolExecutor(4) as pool:
        lost_runs = [run for runs in pool.map(lambda _: bed.sweep(), range(12)) for run in runs]
    assert len(lost_runs) == len(set(lost_runs)) == 1500
    assert (bed.state().count("lost"), bed.state().open) == (1500, 0)


def test_sweeper_thread_finds_lost_runs(bed: ResultsHarness) -> None:
    stopping = threading.Event()
    client = connect(bed.settings)
    thread = threading.Thread(target=Sweeper(client, bed.settings, stopping).run)
    bed.now = 1_500_000_000.0
    bed.open()
    thread.start()
    try:
        wait_for(lambda: bed.state().count("lost") == 1, 10, "the run to be lost")
    finally:
        stopping.set()
        thread.join(PATIENCE)
        client.close()
    assert not thread.is_alive()


def test_leftovers_of_a_removed_pair_are_deleted_after_two_sweeps(bed: ResultsHarness) -> None:
    """As if the hub controller died between removing a pair from the schedule and removing its state."""
    bed.add("c2")
    for cluster in ("c1", "c2"):
        bed.cycle(cluster)
    sweeper = Sweeper(bed.client, bed.settings, threading.Event())
    sweeper.forget_leftovers()
    bed.client.hdel(keys.ENTRIES, "c1/s1")
    sweeper.forget_leftovers()
    assert bed.state("c1").hash_fields
    sweeper.forget_leftovers()
    assert not bed.state("c1").hash_fields
    assert bed.state("c1").last_success is None
    assert bed.history("c1") == []
    assert bed.state("c2").count("ok") == 1
    # Readers may see its removal until the next sweep.
    assert bed.client.zrange(keys.CHANGED, 0, -1) == ["c2/s1", "c1/s1"]
    sweeper.forget_leftovers()
    sweeper.forget_leftovers()
    assert bed.client.zrange(keys.CHANGED, 0, -1) == ["c2/s1"]


def test_pair_that_returns_between_sweeps_keeps_its_counters(bed: ResultsHarness) -> None:
    bed.cycle()
    sweeper = Sweeper(bed.client, bed.settings, threading.Event())
    sweeper.forget_leftovers()
    entry = bed.client.hget(keys.ENTRIES, "c1/s1")
    bed.client.hdel(keys.ENTRIES, "c1/s1")
    sweeper.forget_leftovers()
    bed.client.hset(keys.ENTRIES, "c1/s1", str(entry))
    assert bed.runs.forget(["c1/s1"]) == []
    sweeper.forget_leftovers()
    assert bed.state().count("ok") == 1


def test_many_leftovers_are_forgotten_in_batches(bed: ResultsHarness) -> None:
    pairs = [f"c1/gone{number}" for number in range(1200)]
    bed.client.zadd(keys.CHANGED, dict.fromkeys(pairs, 1))
    for pair in pairs[::2]:
        bed.client.hset(f"dsf:pair:{pair}", "n:scheduled", 1)
    assert bed.runs.find_leftovers() == set(pairs)
    assert set(bed.runs.forget(pairs)) == set(pairs[::2])
    assert bed.client.keys("dsf:pair:c1/gone*") == []
    assert bed.runs.find_leftovers() == set(pairs[::2])
    assert bed.runs.forget(pairs) == []
    assert bed.runs.find_leftovers() == set()
