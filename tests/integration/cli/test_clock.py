"""Commands on a machine with a wrong clock: they use the hub's time and report the difference."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from dsf.store.schedule import ScheduleStore
from tests.faults.movedclock import COMPILER, MovedClock
from tests.integration.exporter.conftest import exporter as exporter  # a fixture
from tests.integration.exporter.fleet import SAMPLE, Fleet, good_fleet
from tests.integration.exporter.server import ApiProcess
from tests.support import forked

WrongDsf = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler (cc)")


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> MovedClock:
    return MovedClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(params=[600, -600])
def off(request: pytest.FixtureRequest, clock: MovedClock) -> int:
    """Seconds by which this machine's clock is ahead."""
    seconds: int = request.param
    clock.ahead(seconds)
    return seconds


@pytest.fixture
def dsf(redis_url: str, clock: MovedClock, tmp_path: Path) -> WrongDsf:
    """Run a command as a process with a wrong clock."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("DSF_")}
    variables |= {"DSF_REDIS_URL": redis_url, "XDG_STATE_HOME": str(tmp_path)} | clock.environment

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return forked.dsf(arguments, variables | environment, timeout=60)

    return run


@pytest.fixture
def fleet(redis_client: redis.Redis) -> Fleet:
    return good_fleet(redis_client)


def has_difference(result: subprocess.CompletedProcess[str], off: int) -> bool:
    """True if standard error reports the difference of this machine's clock."""
    side = "ahead of" if off > 0 else "behind"
    pattern = rf"the clock of this machine is (599|60\d) s {side} the hub's, whose time counts here"
    return re.search(pattern, result.stderr) is not None


def test_pause_ends_at_the_hubs_time(redis_client: redis.Redis, fleet: Fleet, dsf: WrongDsf, off: int) -> None:
    result = dsf("schedule", "pause", SAMPLE, "--until", "15s")
    assert result.returncode == 0, result.stderr
    assert has_difference(result, off)
    override = ScheduleStore(redis_client).read_overrides()[f"*/{SAMPLE}"]
    assert override.paused_until == pytest.approx(override.at + 15, abs=5)
    assert override.at == pytest.approx(time.time(), abs=30)


def test_pause_until_a_past_time_of_the_hub_is_refused(fleet: Fleet, dsf: WrongDsf, off: int) -> None:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 60))
    result = dsf("schedule", "pause", SAMPLE, "--until", at)
    assert result.returncode == 2
    assert "is in the past" in result.stderr


def test_status_judges_by_the_hubs_time(fleet: Fleet, dsf: WrongDsf, off: int) -> None:
    fleet.entry("worker01", due_in=10)
    result = dsf("status", SAMPLE)
    assert result.returncode == 0, result.stdout
    assert "no ticks are sent" not in result.stdout
    assert has_difference(result, off)


def test_scores_show_their_validity_by_the_hubs_time(fleet: Fleet, dsf: WrongDsf, off: int) -> None:
    now = time.time()
    report = json.loads(dsf("scores", "-o", "json").stdout)
    assert {score["state"] for score in report["scores"]} == {"ok"}
    assert all(0 <= score["ageSeconds"] <= time.time() - now + 60 for score in report["scores"])


def test_api_clients_use_the_time_of_the_server(fleet: Fleet, dsf: WrongDsf, exporter: ApiProcess, off: int) -> None:
    result = dsf("status", SAMPLE, DSF_API_URL=exporter.url)
    assert result.returncode == 0, result.stdout
    assert has_difference(result, off)
    assert has_difference(dsf("scores", DSF_API_URL=exporter.url), off)


def test_command_with_a_right_clock_prints_no_warning(fleet: Fleet, dsf: WrongDsf, clock: MovedClock) -> None:
    clock.ahead(0)
    result = dsf("status", SAMPLE)
    assert result.returncode == 0
    assert result.stderr == ""
