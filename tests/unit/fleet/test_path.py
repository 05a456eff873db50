"""Interruptions between a due pair and its written score."""

from __future__ import annotations

import time

import pytest
import redis

from dsf import keys
from dsf.cli.statusreport import read_report
from dsf.fleet.path import LATE_RESULT_SECONDS, LATE_WRITER_SECONDS, STAGES, Interruption
from dsf.fleet.queries import FleetQueries
from dsf.fleetmetrics.collector import make_families
from dsf.settings import Settings
from dsf.store.heartbeats import Heartbeat
from dsf.store.pairs import Unwritten
from dsf.store.ticks import compute_run_deadline, make_tick_message
from dsf.store.writes import TURN_AT_FIELD, ScoreWriterStore
from dsf.web.app import describe_unreadiness
from tests.integration.results.bed import START, ResultsHarness

INTERVAL = 5.0


def send_tick(bed: ResultsHarness, cluster: str = "c1", scorer: str = "s1") -> str:
    """Advance the time by a second and open a run of a scorer with a short interval."""
    bed.now += 1
    return bed.open(cluster, scorer, deadline=compute_run_deadline(INTERVAL))


def working(bed: ResultsHarness) -> None:
    for stage in (keys.RESULTS_STAGE, keys.SWEEP_STAGE):
        Heartbeat(bed.client, stage).renew()


def problems(bed: ResultsHarness) -> list[Interruption]:
    return FleetQueries(bed.client, clock=lambda: bed.now).find_path_problems()


def test_every_stage_works(bed: ResultsHarness) -> None:
    assert problems(bed) == []
    bed.cycle()
    working(bed)
    send_tick(bed)
    bed.now += INTERVAL + LATE_RESULT_SECONDS - 1
    assert problems(bed) == []


def test_missing_results_worker_is_a_problem_within_seconds(bed: ResultsHarness) -> None:
    bed.cycle()
    send_tick(bed)
    bed.now += 14
    assert problems(bed) == []
    bed.now += 2
    [problem] = problems(bed)
    assert problem.stage == "results"
    assert problem.message.startswith(
        "no results are taken in: the service results has not read the mailboxes for 15 s"
    )
    working(bed)
    bed.client.delete(keys.heartbeat(keys.SWEEP_STAGE))
    assert problems(bed)[0].stage == "books"


@pytest.mark.parametrize("waits", ["queue", "mail", ""])
def test_agent_that_sends_no_results_is_a_problem(bed: ResultsHarness, waits: str) -> None:
    bed.cycle()
    working(bed)
    run = send_tick(bed)
    if waits == "queue":
        bed.client.lpush(keys.spoke_queue("c1"), make_tick_message("c1", "s1", run, START))
    if waits == "mail":
        bed.client.set(keys.mail_slot("c1", 3), "a result")
    bed.now += INTERVAL + LATE_RESULT_SECONDS + 1
    [problem] = problems(bed)
    assert problem.stage == "agents"
    assert problem.message.startswith("no results of c1 arrive: the last cycle of s1 had to end 10 s ago; ")
    causes = {
        "queue": "its agent takes no ticks, 1 in its queue",
        "mail": "results wait in its mailbox",
        "": "its agent took the tick and sends no result",
    }
    assert causes[waits] in problem.message
    # A failure or a newer score takes precedence.
    assert bed.cycle() == "ok"
    assert problems(bed) == []


def test_all_silent_clusters_are_counted(bed: ResultsHarness) -> None:
    for number in range(3):
        bed.add(cluster=f"c{number}")
        bed.cycle(cluster=f"c{number}")
    for number in range(3):
        send_tick(bed, cluster=f"c{number}")
    working(bed)
    bed.now += INTERVAL + LATE_RESULT_SECONDS + 1
    [problem] = problems(bed)
    assert "(and of 2 more)" in problem.message


def test_failing_and_never_scored_pairs_are_no_interruption(bed: ResultsHarness) -> None:
    working(bed)
    send_tick(bed)
    bed.now += 60
    assert problems(bed) == []
    bed.cycle(outcome="error")
    send_tick(bed)
    bed.now += 60
    assert problems(bed) == []


def test_scores_that_are_not_written_are_a_problem(bed: ResultsHarness) -> None:
    bed.cycle()
    writes = ScoreWriterStore(bed.client)
    writes.record_unwritten({("c1", "s1"): Unwritten(reason="ScoresNotWritten", message="no space", since=bed.now)})
    [problem] = problems(bed)
    assert problem == ("objects", "1 scores are not written as AddOnPlacementScores; c1/s1: ScoresNotWritten: no space")
    writes.record_unwritten({("c1", "s1"): None})
    assert problems(bed) == []


def test_score_writer_that_stands_still_is_a_problem(bed: ResultsHarness) -> None:
    bed.cycle()
    bed.client.hset(keys.WRITE_STATS, TURN_AT_FIELD, bed.now)
    bed.now += LATE_WRITER_SECONDS
    assert problems(bed) == []
    bed.now += 1
    [problem] = problems(bed)
    assert problem.stage == "objects"
    assert problem.message.startswith("scores are not written: the score writer has done nothing for 61 s")


def test_every_view_shows_the_interruption(bed: ResultsHarness) -> None:
    client: redis.Redis = bed.client
    # All views read this machine's clock.
    bed.now = time.time() - 25
    bed.cycle()
    send_tick(bed)
    model = FleetQueries(client)
    assert [problem.stage for problem in model.summary().problems] == ["results"]
    report = read_report(client, Settings(role="cli"), None)
    assert (report.ok, [problem.message[:23] for problem in report.problems]) == (False, ["no results are taken in"])
    samples = {sample.labels.get("stage"): sample.value for sample in next(iter(make_families(model))).samples}
    assert samples == {stage: float(stage == "results") for stage in STAGES}
    assert "no results are taken in" in describe_unreadiness(client)
    working(bed)
    # A missing agent does not take the hub's pages out of service.
    assert describe_unreadiness(client) == ""
    assert not read_report(client, Settings(role="cli"), None).ok
