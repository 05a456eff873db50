"""One cluster is away, another one's clock is wrong: the others do not notice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

import pytest

from dsf import keys
from tests.faults.fleet import BY_HAND, STALL, Fleet, scores
from tests.support.stack import pass_time

pytestmark = pytest.mark.xdist_group("faults-clusters")

#: Messages in a queue; seconds for which a score may be used.
QUEUE_LIMIT, VALIDITY = 5, 4
TOLERATED = 10


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(
        tmp_path_factory.mktemp("clusters") / "stack",
        ("here", "remote"),
        settings={role: {"queue_limit": QUEUE_LIMIT} for role in ("beat", "cli")},
        altered={"beat": ("--run-slack", "2")},
    )
    made.scorer("cpu", scores(10), execution={"validitySeconds": VALIDITY})
    made.scorer("calm", scores(60), interval=BY_HAND)
    with made:
        for cluster in made.clusters:
            made.wait_success("cpu", cluster)
        made.first_score("calm", "here")
        yield made


def gauges(fleet: Fleet, cluster: str) -> float | None:
    return fleet.metric("exporter", "dynamic_score", ds_score_name="cpu-score", ds_cluster=cluster)


def gaps(fleet: Fleet, since: float) -> list[float]:
    """The times between the ends of two cycles of `here` since then (unix seconds), however they ended."""
    times = [entry.at for entry in fleet.history("cpu", "here") if entry.at >= since]
    return [new - old for new, old in pairwise(times)]


def test_away(fleet: Fleet) -> None:
    fleet.until(lambda: gauges(fleet, "remote") == 10)
    fleet.until(lambda: fleet.items("cpu", "remote") == {"n1": 10})
    since = time.time()
    assert fleet.stop("agent remote") == [0]
    with fleet.unaffected("calm", "here"):
        last = fleet.state("cpu", "remote").score
        assert last is not None
        # The score is used until it expires, and not longer.
        assert fleet.items("cpu", "remote") == {"n1": 10} or time.time() >= last.valid_until
        fleet.until(lambda: fleet.object("cpu", "remote") is None, "the expired score to be removed")
        assert last.valid_until <= time.time() < last.valid_until + 2 + STALL
        assert gauges(fleet, "remote") is None
        fleet.until(lambda: gauges(fleet, "here") == 10)

        # Its queue does not grow, and what is not sent is counted.
        fleet.until(lambda: fleet.state("cpu", "remote").skipped().get("queue_full", 0) >= 3)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert fleet.redis.llen(keys.spoke_queue("remote")) <= QUEUE_LIMIT
            pass_time(0.1)
        queue = keys.spoke_queue("remote")
        assert fleet.metric("exporter", "dynamic_scoring_queue_length", queue=queue) == QUEUE_LIMIT
        skipped = fleet.metric("exporter", "dynamic_scoring_ticks_skipped_total", reason="queue_full")
        assert skipped
        assert skipped >= 3
        # What was sent and not heard of is a failure that says so.
        fleet.check_failure(
            "cpu", "", "lost", "check that the agent of remote runs", cluster="remote", counted_by_agent=False
        )
        fleet.wait_success("cpu", "here")
    fleet.until(lambda: fleet.failures("cpu", "here") == [], "no failure here")
    # Waiting for what is away would take one of its time-outs in each cycle.
    assert median(gaps(fleet, since)) < 5
    done = fleet.dsf("rescore", "cpu", "--cluster", "remote")
    assert done.returncode == 1
    assert "is it running?" in done.stdout + done.stderr

    # It comes back: what waited is too old, the next tick scores.
    fleet.run("agent remote")
    fleet.wait_ready("agent remote")
    assert fleet.wait_success("cpu", "remote", timeout=10) < 5 + STALL
    fleet.until(lambda: fleet.items("cpu", "remote") == {"n1": 10})
    fleet.check_cleared("cpu", "remote")
    fleet.check_books("cpu", "here")
    assert fleet.api.paths().count("/cpu") <= sum(fleet.state("cpu", one).scheduled for one in fleet.clusters)
    fleet.until(lambda: fleet.redis.llen(keys.spoke_queue("remote")) <= 1, "the queue to be taken")


def test_an_agent_that_is_too_slow(fleet: Fleet) -> None:
    """It takes every tick after the next one is due. That is no failed cycle, and yet there is no new score."""
    fleet.settings["agent remote"] = {"agent_rate_limit": "40/m"}
    fleet.restart("agent remote")
    with fleet.unaffected("calm", "here"):

        def told() -> bool:
            done = fleet.dsf("status", "cpu")
            return done.returncode == 1 and "cpu on remote: expired" in done.stdout

        fleet.until(lambda: [one["reason"] for one in fleet.failures("cpu", "remote")] == ["expired"], "status", 40)
        fleet.until(lambda: fleet.condition("cpu", "Scoring")[:2] == ("False", "SomeClustersFail"), "the condition")
        words = "its cycles wait in the queue of remote until the next one is due"
        fleet.until(lambda: words in fleet.condition("cpu", "Scoring")[2], words)
        fleet.until(told, "`dsf status` to say so")
        assert fleet.state("cpu", "remote").skipped()["expired"] >= 3
        assert fleet.metric("exporter", "dynamic_scoring_cycles_total", ds_cluster="remote", outcome="skipped")
        del fleet.settings["agent remote"]
        fleet.restart("agent remote")
        fleet.wait_success("cpu", "remote")
        fleet.wait_success("cpu", "here")
    fleet.check_cleared("cpu", "remote")


def with_clock(fleet: Fleet, seconds: float) -> None:
    """Start the agent of `remote` again, with a clock that is off by so much."""
    fleet.altered["agent remote"] = ("--clock", str(seconds))
    fleet.restart("agent remote")


@pytest.mark.parametrize(("seconds", "word"), [(90, "ahead of"), (-90, "behind")])
def test_a_clock_that_is_off(fleet: Fleet, seconds: float, word: str) -> None:
    with fleet.unaffected("calm", "here"):
        with_clock(fleet, seconds)
        message = fleet.check_failure(
            "cpu",
            "publish",
            "clock_skew",
            "the clock of cluster remote is",
            cluster="remote",
            counted_by_agent=False,
        )
        assert word in message
        assert "synchronise it (NTP)" in message
        # Nothing that it says about time is believed: its score expires.
        fleet.until(lambda: fleet.object("cpu", "remote") is None, "its score to expire")
        assert fleet.metric("exporter", "dynamic_scoring_results_rejected_total", reason="stale")
        with_clock(fleet, 0)
        fleet.wait_success("cpu", "remote")
        fleet.wait_success("cpu", "here")
    fleet.check_cleared("cpu", "remote")


@pytest.mark.parametrize("seconds", [TOLERATED, -TOLERATED])
def test_a_clock_that_is_a_little_off(fleet: Fleet, seconds: float) -> None:
    """Up to 30 s are tolerated, also where the interval is shorter than that."""
    fleet.scorer("patient", scores(20), execution={"validitySeconds": 60})
    try:
        with_clock(fleet, seconds)
        fleet.wait_success("patient", "remote", more=2, timeout=10)
        fleet.until(lambda: fleet.items("patient", "remote") == {"n1": 20})
        fleet.until(lambda: fleet.failures("patient", "remote") == [], "no failure of patient")
    finally:
        with_clock(fleet, 0)
    fleet.wait_success("patient", "remote")
    fleet.check_cleared("patient", "remote")
