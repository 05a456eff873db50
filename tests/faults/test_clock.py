"""The hub's clock is two hours ahead, and is set right while all processes run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from dsf import keys
from tests.faults.fleet import Fleet, scores
from tests.faults.movedclock import COMPILER, MovedClock
from tests.support.httpserver import answer

AHEAD = 7200


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> MovedClock:
    """A clock that every process of the fleet and Redis use."""
    if COMPILER is None:
        pytest.skip("needs a C compiler (cc)")
    return MovedClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, clock: MovedClock) -> Iterator[Fleet]:
    """A fleet with one cluster, on a hub whose clock is ahead."""
    clock.ahead(AHEAD)
    # As fresh processes, because the library is loaded at their start.
    stack = Fleet(
        tmp_path_factory.mktemp("fleet") / "stack",
        altered=dict.fromkeys(("hub", "beat", "results", "agent", "web"), ()),
    )
    stack.scorer("sample", scores(10))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in clock.environment.items():
            patch.setenv(name, value)
        stack.__enter__()
    try:
        yield stack
    finally:
        stack.__exit__()


@pytest.fixture
def fleet(started: Fleet, clock: MovedClock) -> Fleet:
    """The started fleet with its clock ahead again and all servers answering."""
    clock.ahead(AHEAD)
    started.api.script(scores(10), path="/sample")
    return started


def valid_until(fleet: Fleet) -> float:
    """Until when the AddOnPlacementScore is valid (unix seconds)."""
    score_object = fleet.object("sample")
    assert score_object is not None
    return datetime.fromisoformat(score_object["status"]["validUntil"]).timestamp()


def test_scores_go_on_and_failures_are_seen(fleet: Fleet, clock: MovedClock) -> None:
    fleet.wait_success("sample", cycles=3)
    fleet.until(lambda: fleet.items("sample") == {"n1": 10}, "the object")
    assert valid_until(fleet) > time.time() + AHEAD

    # The scoring API fails from here on, so no new score replaces the old one.
    fleet.api.script(answer("broken", 500), path="/sample")
    fleet.until(lambda: fleet.state("sample").failing > 0, "a failure")
    clock.ahead(0)
    failing = fleet.state("sample").failing
    fleet.until(lambda: fleet.state("sample").failing > failing + 1, "further failures")
    fleet.until(lambda: valid_until(fleet) < time.time() + AHEAD / 2, "the end of the old score's validity")
    assert (fleet.state("sample").last_success or 0) < time.time() + AHEAD / 2
    assert fleet.dsf("status").returncode == 1
    fleet.until(lambda: fleet.condition("sample", "Scoring")[0] == "False", "the condition")

    fleet.api.script(scores(20), path="/sample")
    fleet.until(lambda: fleet.items("sample") == {"n1": 20}, "the next score")
    fleet.until(lambda: fleet.condition("sample", "Scoring")[0] == "True", "the condition")
    score = fleet.state("sample").score
    assert score is not None
    assert score.valid_until < time.time() + AHEAD / 2
    # A cycle of a second may have no time on a busy machine.
    fleet.until(lambda: fleet.dsf("status").returncode == 0, "`dsf status` to find nothing wrong")
    assert fleet.score_now("sample").outcome == "ok"


def test_dead_beat_is_replaced_after_the_clock_is_corrected(fleet: Fleet, clock: MovedClock) -> None:
    """The lock in Redis would last until that time. This is the last test here: the other beat has the right time."""
    # After three cycles beat has acquired or extended its lock with the clock ahead.
    fleet.wait_success("sample", cycles=3)
    fleet.kill("beat")
    clock.ahead(0)
    assert fleet.redis.pttl(keys.BEAT_LOCK) > AHEAD * 500
    fleet.run("beat 2")
    fleet.wait_success("sample")
