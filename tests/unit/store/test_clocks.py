"""Detection of the host with a wrong clock."""

from __future__ import annotations

import time

import pytest
import redis

from dsf import keys
from dsf.process.hubclock import HubClock
from dsf.settings import Settings
from dsf.store.clocks import MAX_WITNESSES, ClockReport, ClockReports, find_clock_problem, read_reports

NOW = 1_800_000_000.0


def reports(**offsets: float) -> list[ClockReport]:
    """Return reports of processes whose clocks are behind Redis by these seconds."""
    return [ClockReport(name=name, offset=offset, at=NOW) for name, offset in offsets.items()]


BOTH = "synchronise both (NTP)"
NTP = "synchronise it (NTP)"
REDIS = "the clock of the machine of Redis is 60 s"
ALL = f"it gives all times of the hub: {NTP}"


@pytest.mark.parametrize(
    ("offsets", "sentence"),
    [
        ({}, ""),
        ({"hub": 0.0, "beat": 29.0, "results": -29.0}, ""),
        ({"hub": 0.1, "beat": -60.0, "web": 0.0}, f"the clock of beat is 60 s ahead of the hub's; {NTP}"),
        ({"hub": 0.1, "beat": 0.0, "results": 60.0}, f"the clock of results is 60 s behind the hub's; {NTP}"),
        ({"hub": 60.0, "beat": 60.2, "web": 59.8}, f"{REDIS} ahead of the clocks of hub, beat, web; {ALL}"),
        (
            {"hub": -60.0, "beat": -60.0, "results": -60.0, "web": -60.0},
            f"{REDIS} behind the clocks of hub, beat, results and 1 more; {ALL}",
        ),
        (
            {"hub": 60.0},
            f"the clock of hub is 60 s behind that of the machine of Redis; one of them is wrong: {BOTH}",
        ),
        # The agent's report decides.
        ({"hub": 60.0, "the agent of c1": 60.0}, f"{REDIS} ahead of the clocks of hub, the agent of c1; {ALL}"),
        ({"hub": 60.0, "the agent of c1": 0.0}, f"the clock of hub is 60 s behind the hub's; {NTP}"),
        (
            {"hub": 0.0, "web": 0.0, "beat": 600.0, "results": -40.0},
            f"the clock of beat is 600 s behind the hub's (and 1 more); {NTP}",
        ),
    ],
)
def test_clock_problem_names_the_machine_that_differs_from_most(offsets: dict[str, float], sentence: str) -> None:
    assert find_clock_problem(reports(**offsets)) == sentence


def test_reports_of_a_process_are_read_while_they_are_new(redis_client: redis.Redis) -> None:
    reports = ClockReports(redis_client, Settings(role="beat"))
    clock = HubClock(redis_client, own_clock=lambda: time.time() - 60, on_measured=reports.report)
    while not clock.measure():
        pass
    [report] = read_reports(redis_client, clock.now())
    assert report.name.startswith("beat on ")
    assert report.offset == pytest.approx(60, abs=1)
    assert read_reports(redis_client, clock.now() + 120) == []
    assert not redis_client.exists(keys.CLOCKS)


def test_number_of_agents_in_the_reports_is_bounded(redis_client: redis.Redis) -> None:
    offsets = {f"c{number}": 0.0 for number in range(1000)}
    ClockReports(redis_client, Settings(role="results")).report_agents(offsets, NOW)
    assert len(read_reports(redis_client, NOW)) == MAX_WITNESSES
