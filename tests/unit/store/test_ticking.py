"""Ticks that are not sent are visible in the oldest due time."""

from __future__ import annotations

import time

import pytest
import redis

from dsf import keys
from dsf.beat.stats import collect_schedule_metrics
from dsf.cli.statusreport import read_report
from dsf.fleet.queries import FleetQueries
from dsf.settings import Settings
from dsf.store.registry import Registry, ScorerRecord
from dsf.store.ticks import MAX_LATENESS, find_ticks_problem
from dsf.web.app import describe_unreadiness
from tests.support.memorystore import memory_client

NOW = 1_790_000_000.0


@pytest.mark.parametrize(
    ("due", "is_problem"),
    [
        ({}, False),
        ({"c1/s": 10.0}, False),
        ({"c1/s": -MAX_LATENESS}, False),
        ({"c1/s": -MAX_LATENESS - 1, "c2/s": 5.0}, True),
    ],
)
def test_overdue_pair_is_reported_as_a_missing_beat(due: dict[str, float], is_problem: bool) -> None:
    client: redis.Redis = memory_client()
    for pair, after in due.items():
        client.zadd(keys.DUE, {pair: NOW + after})
    assert bool(find_ticks_problem(client, NOW)) is is_problem


def test_every_view_of_the_fleet_says_it() -> None:
    client = memory_client()
    Registry(client).put_scorer(ScorerRecord(name="s", score_name="s", interval=30, validity=90))
    client.zadd(keys.DUE, {"c1/s": time.time() - MAX_LATENESS - 1})
    [problem] = FleetQueries(client).summary().problems
    assert (problem.stage, problem.message[:23]) == ("ticks", "no ticks are sent: c1/s")
    report = read_report(client, Settings(role="cli"), None)
    assert (report.ok, [problem.message[:17] for problem in report.problems]) == (False, ["no ticks are sent"])
    samples = {sample.name: sample.value for family in collect_schedule_metrics(client) for sample in family.samples}
    assert samples["dynamic_scoring_ticks_stopped"] == 1
    assert "no ticks are sent" in describe_unreadiness(client)
    client.zadd(keys.DUE, {"c1/s": time.time() + 60})
    assert describe_unreadiness(client) == ""
    assert read_report(client, Settings(role="cli"), None).ok
