"""Faults of one cluster, or of one process of the hub, do not affect the other clusters."""

from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median

import pytest

from dsf import keys
from dsf.messages import run_time
from tests.faults.fleet import BY_HAND, STALL, Fleet, scores
from tests.support.child import Child
from tests.support.httpserver import Gate

#: Messages in a queue; seconds for which a score may be used.
QUEUE_LIMIT, VALIDITY = 5, 4
#: Clock difference that is tolerated.
TOLERATED = 10
#: Scorers whose cycles have as much time as a busy machine needs.
PATIENT = ("one", "two", "three")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    stack = Fleet(
        tmp_path_factory.mktemp("clusters") / "stack",
        ("c1", "c2"),
        # No test here reads the health of scoring APIs.
        settings={role: {"queue_limit": QUEUE_LIMIT} for role in ("beat", "cli")} | {"hub": {"health_interval": 5}},
        altered={"beat": ("--run-slack", "2")},
    )
    stack.scorer("cpu", scores(10), execution={"validitySeconds": VALIDITY})
    stack.scorer("calm", scores(60), interval=BY_HAND)
    with stack:
        for cluster in stack.clusters:
            stack.wait_success("cpu", cluster)
        stack.first_score("calm")
        yield stack


def gauge(fleet: Fleet, process: str, scorer: str, cluster: str) -> float | None:
    return fleet.metric(process, "dynamic_score", ds_score_name=f"{scorer}-score", ds_cluster=cluster)


def list_gaps(fleet: Fleet, start: float) -> list[float]:
    """Return the times between the ends of two cycles of c1 since then (unix seconds), however they ended."""
    times = [entry.at for entry in fleet.history("cpu") if entry.at >= start]
    return [new - old for new, old in pairwise(times)]


def test_stopped_agent_is_reported_and_its_queue_stays_bounded(fleet: Fleet) -> None:
    fleet.until(lambda: gauge(fleet, "web", "cpu", "c2") == 10)
    fleet.until(lambda: fleet.items("cpu", "c2") == {"n1": 10})
    start = time.time()
    assert fleet.stop("agent c2") == [0]
    with fleet.expect_unaffected("calm"):
        last = fleet.state("cpu", "c2").score
        assert last is not None
        # The score is used until it expires, and not longer.
        assert fleet.items("cpu", "c2") == {"n1": 10} or time.time() >= last.valid_until
        fleet.until(lambda: fleet.object("cpu", "c2") is None, "the expired score to be removed")
        assert last.valid_until <= time.time() < last.valid_until + 2 + STALL
        assert gauge(fleet, "web", "cpu", "c2") is None
        fleet.until(lambda: gauge(fleet, "web", "cpu", "c1") == 10)

        # Its queue does not grow, and skipped ticks are counted.
        fleet.until(lambda: fleet.state("cpu", "c2").read_skip_counts().get("queue_full", 0) >= 3)
        queue = keys.spoke_queue("c2")
        assert fleet.redis.llen(queue) <= QUEUE_LIMIT
        # The exporter shows its last read, which is older on a busy machine.
        length = functools.partial(fleet.metric, "web", "dynamic_scoring_queue_length", queue=queue)
        fleet.until(lambda: length() == QUEUE_LIMIT, "the length of the queue to be shown")
        # A dispatched run without a result is reported as a separate failure.
        fleet.check_failure("cpu", "", "lost", "check that the agent of c2 runs", cluster="c2", counted_by_agent=False)
        fleet.wait_success("cpu")
    fleet.until(lambda: fleet.failures("cpu") == [], "no failure here")
    # Waiting for an unreachable cluster would take a whole timeout in each cycle.
    assert median(list_gaps(fleet, start)) < 5
    process = fleet.dsf("rescore", "cpu", "--cluster", "c2")
    assert process.returncode == 1
    assert "is it running?" in process.stdout + process.stderr

    # When the agent returns, queued ticks have expired and the next tick scores.
    fleet.run("agent c2")
    fleet.wait_ready("agent c2")
    fleet.wait_success("cpu", "c2")
    fleet.until(lambda: fleet.items("cpu", "c2") == {"n1": 10})
    fleet.check_cleared("cpu", "c2")
    fleet.check_books("cpu")
    assert fleet.api.paths().count("/cpu") <= sum(fleet.state("cpu", cluster).scheduled for cluster in fleet.clusters)
    fleet.until(lambda: fleet.redis.llen(queue) <= 1, "the queue to be taken")


def test_mask_during_a_cycle_removes_the_score_without_a_failure(fleet: Fleet) -> None:
    """The score is removed from the hub and from both /metrics, and the result of the running cycle is refused."""
    fleet.scorer("masked", scores(10), interval=2)
    for cluster in ("c1", "c2"):
        fleet.until(lambda cluster=cluster: fleet.items("masked", cluster) == {"n1": 10})  # type: ignore[misc]
    gate = Gate(scores(99))
    fleet.api.script(gate, path="/masked")
    assert gate.entered.wait(60)
    fleet.config(("c1", "masked-score"))
    fleet.until(lambda: fleet.object("masked", "c1") is None, "the masked score to be removed")
    fleet.until(lambda: gauge(fleet, "agent c1", "masked", "c1") is None, "the agent's gauges to go")
    assert gauge(fleet, "web", "masked", "c1") is None
    gate.opened.set()
    fleet.api.script(scores(20), path="/masked")
    fleet.until(lambda: fleet.items("masked", "c2") == {"n1": 20})
    masked = keys.pair("c1", "masked")
    fleet.until(lambda: not [run for run in fleet.open_runs() if run.startswith(masked)], "the running cycle to end")
    assert fleet.object("masked", "c1") is None
    assert gauge(fleet, "agent c2", "masked", "c2") == 20
    process = fleet.dsf("rescore", "masked", "--cluster", "c1")
    assert process.returncode == 1
    assert "it is masked there" in process.stderr

    fleet.config()
    fleet.until(lambda: fleet.items("masked", "c1") == {"n1": 20})
    fleet.check_books("masked")


def test_agent_with_a_clock_ahead_runs_without_failures(fleet: Fleet) -> None:
    """By more than the interval: all ticks would have expired by the agent's clock, but it uses the hub's."""
    fleet.altered["agent c2"] = ("--clock", str(TOLERATED))
    fleet.restart("agent c2")
    fleet.wait_success("cpu", "c2", cycles=3)
    fleet.until(lambda: fleet.failures("cpu", "c2") == [], "no failure")
    del fleet.altered["agent c2"]
    fleet.restart("agent c2")


@contextmanager
def slow(process: Child, *, runs: float, waits: float) -> Iterator[None]:
    """Let a process use this many seconds of CPU, then none for as long, repeatedly."""
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


def test_every_pair_gets_scores_while_the_results_worker_has_too_little_cpu(fleet: Fleet) -> None:
    for number, scorer in enumerate(PATIENT):
        fleet.scorer(scorer, scores(number), interval=10)
    pairs = [(cluster, scorer) for cluster in fleet.clusters for scorer in PATIENT]
    for cluster, scorer in pairs:
        fleet.wait_success(scorer, cluster)

    def is_newer(cluster: str, scorer: str, run: str) -> bool:
        state = fleet.state(scorer, cluster)
        return state.failing == 0 and run_time(state.last_run) > run_time(run)

    with slow(fleet.processes["results"], runs=0.1, waits=0.9):
        for pair_and_run in [(*pair, fleet.state(pair[1], pair[0]).last_run) for pair in pairs]:
            fleet.until(functools.partial(is_newer, *pair_and_run), f"a newer score than {pair_and_run}", 60)
    for cluster, scorer in pairs:
        fleet.wait_success(scorer, cluster)
        fleet.check_books(scorer, cluster)
        assert fleet.state(scorer, cluster).count("lost") == 0
