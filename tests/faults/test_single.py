"""The hub as one process with all its services: its endpoints, its end, and a kill, which loses nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dsf import keys
from tests.faults.fleet import Fleet, scores
from tests.support.wait import PATIENCE


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    stack = Fleet(tmp_path_factory.mktemp("single") / "stack", single=True)
    stack.scorer("steady", scores(60))
    with stack:
        stack.wait_success("steady")
        yield stack


def test_single_process_serves_page_api_and_metrics_from_one_port(fleet: Fleet) -> None:
    assert "steady" in fleet.page("whole", "/").text
    assert fleet.page("whole", "/api/v1/summary").json()["clusters"] == 1
    assert fleet.metric("whole", "dynamic_scoring_up") == 1
    assert [name for name in fleet.processes if not name.startswith("agent")] == ["whole"]


def test_killed_single_process_loses_no_run_and_no_override(fleet: Fleet) -> None:
    fleet.schedule.set_override("c1/steady", interval=2)
    before = fleet.state("steady").count("ok")
    fleet.kill("whole")
    fleet.run("whole")
    fleet.wait_ready("whole")
    fleet.until(lambda: fleet.state("steady").count("ok") > before, "scores after the kill")
    assert fleet.schedule.read_overrides()["c1/steady"].interval == 2
    fleet.until(lambda: _books_balance(fleet), "every scheduled run to have an outcome")
    fleet.schedule.reset("c1/steady")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_single_process_releases_the_beat_lock(fleet: Fleet, number: signal.Signals) -> None:
    fleet.until(lambda: fleet.redis.get(keys.BEAT_LOCK), "beat to be active")
    process = fleet.processes.pop("whole")
    children = psutil.Process(process.pid).children()
    process.signal(number)
    assert process.wait(PATIENCE) == 0, process.tail()
    assert fleet.redis.get(keys.BEAT_LOCK) is None
    assert children == []
    assert "Traceback" not in fleet.log("whole")
    fleet.run("whole")
    fleet.wait_ready("whole")


def test_single_process_without_its_folder_lock_ends_with_an_error(fleet: Fleet, tmp_path: Path) -> None:
    del tmp_path
    fleet.run("whole 2")
    second = fleet.processes.pop("whole 2")
    assert second.wait(PATIENCE) == 1
    assert "another hub works on" in second.tail()


def _books_balance(fleet: Fleet) -> bool:
    return fleet.state("steady").open == len(fleet.open_runs())
