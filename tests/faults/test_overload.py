"""The results worker gets less CPU than it needs: every pair gets scores, and all is well afterwards."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dsf import keys
from dsf.messages import run_time
from tests.faults.fleet import Fleet, scores
from tests.support.child import Child

pytestmark = pytest.mark.xdist_group("faults-overload")

CLUSTERS = ("c1", "c2")
SCORERS = ("one", "two", "three")
PAIRS = [(cluster, scorer) for cluster in CLUSTERS for scorer in SCORERS]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("overload") / "stack", CLUSTERS)
    for number, scorer in enumerate(SCORERS):
        # A cycle has as long as its interval: a busy machine may give it nothing for some seconds.
        made.scorer(scorer, scores(number), interval=10)
    with made:
        for cluster, scorer in PAIRS:
            made.wait_success(scorer, cluster)
        yield made


@contextmanager
def stopped(process: Child) -> Iterator[None]:
    """Without any CPU."""
    process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.signal(signal.SIGCONT)


@contextmanager
def slow(process: Child, *, runs: float, waits: float) -> Iterator[None]:
    """With so many seconds of CPU at most, then none for so many, over and over."""
    end = threading.Event()

    def work() -> None:
        while not end.is_set():
            process.signal(signal.SIGSTOP)
            end.wait(waits)
            process.signal(signal.SIGCONT)
            end.wait(runs)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        process.signal(signal.SIGCONT)


def _has_more(fleet: Fleet, cluster: str, scorer: str, number: int) -> bool:
    return fleet.state(scorer, cluster).count("ok") > number


def _waiting(fleet: Fleet) -> int:
    slots = [slot for cluster in CLUSTERS for slot in keys.mail_slots(cluster)]
    return int(fleet.redis.exists(*slots))


def test_nothing_is_lost_while_the_results_worker_stands_still(fleet: Fleet) -> None:
    with stopped(fleet.processes["results"]):
        # Each agent goes on, and puts its results beside those that wait.
        runs = {pair: fleet.state(pair[1], pair[0]).scheduled for pair in PAIRS}
        fleet.until(
            lambda: all(
                fleet.state(scorer, cluster).scheduled >= runs[cluster, scorer] + 3 for cluster, scorer in PAIRS
            ),
            "three more ticks of each pair",
            60,
        )
        assert _waiting(fleet) > len(PAIRS)
    for cluster, scorer in PAIRS:
        before = fleet.state(scorer, cluster).count("ok")
        fleet.until(functools.partial(_has_more, fleet, cluster, scorer, before + 1), "new scores", 60)
        state = fleet.state(scorer, cluster)
        assert (state.errors(), state.count("lost")) == ({}, 0)
        fleet.check_books(scorer, cluster)


def test_every_pair_gets_scores_with_too_little_cpu_and_all_is_normal_afterwards(fleet: Fleet) -> None:
    def is_newer(cluster: str, scorer: str, run: str) -> bool:
        state = fleet.state(scorer, cluster)
        return state.failing == 0 and run_time(state.last_run) > run_time(run)

    with slow(fleet.processes["results"], runs=0.1, waits=0.9):
        for _ in range(3):
            runs = [(cluster, scorer, fleet.state(scorer, cluster).last_run) for cluster, scorer in PAIRS]
            for one in runs:
                fleet.until(functools.partial(is_newer, *one), f"a newer score than {one}", 60)
    for cluster, scorer in PAIRS:
        fleet.wait_success(scorer, cluster)
        fleet.check_books(scorer, cluster)
        assert fleet.state(scorer, cluster).count("lost") == 0
