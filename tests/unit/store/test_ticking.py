"""Ticks that are not sent: the oldest due time says so."""

from __future__ import annotations

import time

import pytest
import redis
from starlette.testclient import TestClient

from dsf import keys
from dsf.cli.statusreport import read_report
from dsf.fleet.model import FleetModel
from dsf.fleetmetrics.endpoint import make_app
from dsf.schedule.stats import schedule_families
from dsf.settings import Settings
from dsf.store.ticks import LATE, ticks_problem
from tests.support.memorystore import memory_client

NOW = 1_790_000_000.0


@pytest.mark.parametrize(
    ("due", "is_problem"),
    [({}, False), ({"c1/s": 10.0}, False), ({"c1/s": -LATE}, False), ({"c1/s": -LATE - 1, "c2/s": 5.0}, True)],
)
def test_a_pair_that_stays_due_means_that_no_beat_works(due: dict[str, float], is_problem: bool) -> None:
    client: redis.Redis = memory_client()
    for pair, after in due.items():
        client.zadd(keys.DUE, {pair: NOW + after})
    assert bool(ticks_problem(client, NOW)) is is_problem


def test_every_view_of_the_fleet_says_it() -> None:
    client = memory_client()
    client.zadd(keys.DUE, {"c1/s": time.time() - LATE - 1})
    assert FleetModel(client).summary().ticks_problem.startswith("no ticks are sent: c1/s")
    report = read_report(client, Settings(role="cli"), None)
    assert (report.ok, [problem.message[:17] for problem in report.problems]) == (False, ["no ticks are sent"])
    samples = {sample.name: sample.value for family in schedule_families(client) for sample in family.samples}
    assert samples["dynamic_scoring_ticks_stopped"] == 1
    with TestClient(make_app(client)) as asking:
        answer = asking.get("/readyz")
        assert (answer.status_code, "no ticks are sent" in answer.text) == (503, True)
        client.zadd(keys.DUE, {"c1/s": time.time() + 60})
        assert asking.get("/readyz").status_code == 200
    assert read_report(client, Settings(role="cli"), None).ok
