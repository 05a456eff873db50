"""The product as its users meet it: request a score, change the interval, restart all; and a beat that hangs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from dsf import keys
from dsf.messages import run_time
from dsf.store.ticks import MAX_LATENESS
from tests.faults.fleet import BY_HAND, STALL, Fleet, scores
from tests.support.child import stopped
from tests.support.webprocess import WebProcess


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    stack = Fleet(tmp_path_factory.mktemp("user") / "stack", ("c1", "c2"))
    # No scheduled cycle runs in between.
    stack.scorer("sample", scores(10), interval=BY_HAND, query="up")
    with stack:
        for cluster in stack.clusters:
            stack.first_score("sample", cluster)
            stack.until(lambda cluster=cluster: stack.items("sample", cluster) == {"n1": 10})  # type: ignore[misc]
        yield stack


def test_rescore_returns_the_new_score(fleet: Fleet) -> None:
    fleet.api.script(scores(42.7), path="/sample")
    before = fleet.books("sample", "c2")
    process = fleet.dsf("rescore", "sample", "--cluster", "c1", "--wait", "-o", "json")
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert [(run["cluster"], run["outcome"]) for run in report["runs"]] == [("c1", "ok")]
    assert report["scores"][0]["items"] == [{"name": "n1", "value": 42}]
    assert report["scores"][0]["runId"] == report["runs"][0]["runId"]
    assert fleet.books("sample", "c2") == before
    table = fleet.dsf("rescore", "sample", "--cluster", "c1", "--wait")
    assert "ok" in table.stdout
    fleet.until(lambda: fleet.items("sample") == {"n1": 42})
    scored = fleet.data("scores", "--scorer", "sample", "--cluster", "c1")["scores"][0]
    assert (scored["fresh"], scored["items"]) == (True, [{"name": "n1", "value": 42}])


def test_stopped_beat_is_reported_by_page_metrics_and_status(fleet: Fleet, tmp_path: Path) -> None:
    """All views report that no ticks are sent, although all scores are fresh."""
    url = fleet.redis_server.url
    with WebProcess(url, tmp_path / "web.log", manifests=fleet.manifests) as page:
        with stopped(fleet.processes["beat"]):
            # As if that much time had passed: the pair is due, and beat does not move its due time.
            fleet.redis.zadd(keys.DUE, {"c1/sample": time.time() - MAX_LATENESS - 10}, xx=True)
            fleet.until(lambda: fleet.page("web", "/readyz").status_code == 503, "the page's readiness")
            assert "no ticks are sent: c1/sample" in fleet.page("web", "/readyz").text
            assert fleet.metric("web", "dynamic_scoring_ticks_stopped") == 1
            status = fleet.dsf("status")
            assert (status.returncode, "no ticks are sent: c1/sample" in status.stdout) == (1, True)
            # The page shows its last read for some seconds.
            fleet.until(lambda: "No ticks are sent: c1/sample" in page.get("/").text, "the page's headline")
            assert "scores are fresh" not in page.get("/").text

        fleet.until(lambda: fleet.page("web", "/readyz").status_code == 200, "the page's readiness")
        assert fleet.metric("web", "dynamic_scoring_ticks_stopped") == 0
        fleet.until(lambda: fleet.dsf("status").returncode == 0, "`dsf status` to find nothing wrong")
        fleet.until(lambda: "No ticks are sent" not in page.get("/").text, "the page's headline")


def pace(fleet: Fleet, cluster: str, cycles: int) -> list[float]:
    """Return seconds between the newest cycles, from `dsf history`."""
    newest_cycles = fleet.data("history", "sample", "--cluster", cluster)["cycles"][:cycles]
    # A run id begins with the milliseconds at which it was due.
    times = [int(cycle["runId"][:13]) / 1000 for cycle in newest_cycles]
    return [new - old for new, old in pairwise(times)]


def left_out(fleet: Fleet) -> int:
    """Return the slots of c1 that passed while beat had no CPU for longer than an interval, as beat counts them."""
    return fleet.state("sample").read_skip_counts().get("expired", 0)


def list_gaps(fleet: Fleet, runs: int) -> list[float]:
    """Return seconds between the newest runs of c1, whether or not their cycles have ended."""
    # In this order: a run that ends meanwhile is in both.
    started = [member.rpartition("/") for member in fleet.open_runs()]
    known_runs = [run for pair, _, run in started if pair == "c1/sample"] + [
        entry.run for entry in fleet.history("sample")
    ]
    return [new - old for old, new in pairwise(sorted({run_time(run) for run in known_runs})[-runs:])]


def check_gaps(fleet: Fleet, runs: int, before: int) -> None:
    """Check that the newest runs are two seconds apart; those after them if `left_out` is more than `before`."""
    seconds_between_runs, skipped = list_gaps(fleet, runs), left_out(fleet)
    for _ in range(2):
        if skipped == before:
            break
        before = skipped
        fleet.wait_success("sample", cycles=runs + 1)
        seconds_between_runs, skipped = list_gaps(fleet, runs), left_out(fleet)
    assert seconds_between_runs == pytest.approx([2] * (runs - 1), abs=0.01)


def test_interval_override_changes_the_pace_and_survives_a_restart_of_all_processes(fleet: Fleet) -> None:
    before = left_out(fleet)
    process = fleet.dsf("schedule", "set", "sample", "--cluster", "c1", "--interval", "2", "--note", "incident 42")
    assert process.returncode == 0, process.stderr
    # The first cycle starts at once, the others follow every two seconds.
    assert fleet.wait_success("sample", cycles=4) < 11 + STALL
    check_gaps(fleet, 4, before)
    # A cycle that has no time on a busy machine ends late, or never.
    fleet.until(lambda: pace(fleet, "c1", 4) == pytest.approx([2, 2, 2], abs=0.01), "a pace of two seconds")
    alone = fleet.books("sample", "c2")["scheduled"]

    names = list(fleet.processes)
    assert set(fleet.stop(*names)) == {0}
    fleet.redis_server.restart()
    for name in names:
        fleet.run(name)
    for name in names:
        fleet.wait_ready(name)
    fleet.wait_success("sample")
    before = left_out(fleet)
    fleet.wait_success("sample", cycles=3)
    check_gaps(fleet, 3, before)
    fleet.until(lambda: pace(fleet, "c1", 3) == pytest.approx([2, 2], abs=0.01), "a pace of two seconds")
    entry = fleet.data("schedule", "list", "sample", "--cluster", "c1")["entries"][0]
    assert (entry["intervalSeconds"], entry["entryIntervalSeconds"]) == (2, BY_HAND)
    assert (entry["intervalSource"], entry["overrides"][0]["note"]) == ("c1/sample", "incident 42")
    assert fleet.books("sample", "c2")["scheduled"] <= alone + 1

    assert fleet.dsf("schedule", "reset", "sample", "--cluster", "c1").returncode == 0
    entry = fleet.data("schedule", "list", "sample", "--cluster", "c1")["entries"][0]
    assert (entry["intervalSeconds"], entry["overrides"]) == (BY_HAND, [])
    fleet.until(lambda: fleet.state("sample").open == 0)
    for cluster in fleet.clusters:
        fleet.check_books("sample", cluster)
