"""Redis stops, freezes, or refuses writes: everything recovers by itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.faults.fleet import STALL, Fleet, scores
from tests.support.stack import pass_time

#: Seconds for which Redis is stopped.
AWAY = 12.0
SCORERS = ("fast", "queried")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    stack = Fleet(tmp_path_factory.mktemp("redis") / "stack", altered={"beat": ("--run-slack", "2")})
    stack.scorer("fast", scores(10), execution={"validitySeconds": 60})
    stack.scorer("queried", scores(20), interval=2, query="up")
    with stack:
        for scorer in SCORERS:
            stack.wait_success(scorer)
        yield stack


@pytest.fixture(autouse=True)
def _nobody_ends(fleet: Fleet) -> Iterator[None]:
    """No process ends, so none has to be restarted."""
    yield
    assert [name for name, process in fleet.processes.items() if not process.is_running] == []


def check_all_is_back(fleet: Fleet, within: float) -> None:
    """Every part works again: beat, agent, results worker, exporter, hub."""
    started = time.monotonic()
    for scorer in SCORERS:
        fleet.wait_success(scorer, cycles=2, timeout=within + 10)
    duration = time.monotonic() - started
    assert duration < within + STALL, f"{duration:.1f} s until scores came again"
    assert fleet.metric("web", "dynamic_scoring_up") == 1
    # The hub: a new scorer gets its entry.
    name = f"new{int(started)}"
    fleet.scorer(name, scores(30))
    fleet.wait_success(name)
    (fleet.manifests / f"scorer-{name}.yaml").unlink()
    for scorer in SCORERS:
        fleet.check_cleared(scorer)
    fleet.until(lambda: fleet.spooled("c1") == [])


def test_fleet_recovers_from_a_killed_redis(fleet: Fleet) -> None:
    began, before = time.monotonic(), fleet.state("fast")
    fleet.redis_server.kill()
    killed = time.monotonic()
    pass_time(AWAY / 2)
    assert fleet.page("web", "/readyz").status_code == 503
    assert fleet.page("web", "/healthz").status_code == 200
    assert fleet.metric("web", "dynamic_scoring_up") == 0
    # The agent's own scores are as valid as before.
    assert fleet.metric("agent c1", "dynamic_score", ds_score_name="fast-score") == 10
    assert fleet.items("fast") == {"n1": 10}
    process = fleet.dsf("status")
    assert process.returncode == 1
    assert "cannot use Redis" in process.stderr
    pass_time(AWAY / 2)
    back = time.monotonic()
    fleet.redis_server.restart()

    check_all_is_back(fleet, 15)
    # Missed ticks are not caught up: of one a second there are no more than seconds in which Redis was there.
    ticks = fleet.state("fast").scheduled - before.scheduled
    assert ticks <= (killed - began) + (time.monotonic() - back) + 3
    for name in ("beat", "results", "agent c1", "hub"):
        assert fleet.log(name).count("Traceback") == 0, name


def test_fleet_recovers_from_a_frozen_redis_with_half_open_connections(fleet: Fleet) -> None:
    os.kill(fleet.redis_server.pid, signal.SIGSTOP)
    # Wait longer than any time-out of a connection.
    pass_time(13)
    os.kill(fleet.redis_server.pid, signal.SIGCONT)
    check_all_is_back(fleet, 25)


@pytest.mark.parametrize(
    ("setting", "noticed"),
    # A full Redis allows reading ticks, but not sending results.
    [("min-replicas-to-write", "Connection to broker lost"), ("maxmemory", "no scorer had a good cycle")],
)
def test_fleet_recovers_from_a_redis_that_refuses_writes(fleet: Fleet, setting: str, noticed: str) -> None:
    """Its replica is missing, or it is full: unlike a stopped Redis, it responds."""
    before = {name: len(fleet.log(name)) for name in ("agent c1", "results", "hub")}
    fleet.redis.config_set(setting, "1")
    try:
        fleet.until(lambda: noticed in fleet.log("agent c1")[before["agent c1"] :], "the agent to notice")
        pass_time(8)
    finally:
        fleet.redis.config_set(setting, "0")
    assert [name for name, process in fleet.processes.items() if not process.is_running] == []
    # Each try is a line or two in the log, not hundreds.
    assert fleet.log("results")[before["results"] :].count("Connection to broker lost") < 50
    # Scoring APIs are checked all the same.
    assert "health check is lost" not in fleet.log("hub")[before["hub"] :]
    check_all_is_back(fleet, 25)
