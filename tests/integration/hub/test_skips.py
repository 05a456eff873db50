"""Clusters without a score because beat skips their ticks: the status of the DynamicScorer has the reason."""

from __future__ import annotations

import time

from dsf import keys
from dsf.demo.report import DemoReport
from dsf.fleet.queries import FleetQueries
from tests.integration.beat.support import Bench, pushed
from tests.integration.hub.world import HubHarness
from tests.support.httpserver import ScriptedServer, answer


def test_skipped_scorer_reports_the_reason_until_a_tick_is_sent(running: HubHarness) -> None:
    running.until(lambda: running.pairs() == ["a/cpu-scorer", "b/cpu-scorer"])
    bench = Bench(running.client, queue_limit=1, now=time.time())
    for cluster in "ab":
        running.client.lpush(keys.spoke_queue(cluster), "of an agent that is away")
    bench.run(100)
    running.tell("cpu-scorer")
    expected_message = "2 of 2 clusters have no score, for they are sent no ticks; longest: "
    running.until(lambda: running.condition("cpu-scorer", "Scoring")[2].startswith(expected_message))
    status, reason, message = running.condition("cpu-scorer", "Scoring")
    assert (status, reason) == ("False", "TicksSkipped")
    assert message.endswith("is full: its agent does not run or is overloaded; check that it runs and reaches Redis")
    running.until(lambda: ("cpu-scorer", "TicksSkipped", "Warning") in running.events())
    # A cluster that scores again is no longer reported; the other one still is.
    running.client.delete(keys.spoke_queue("a"))
    bench.run(31)
    running.succeed("a", "cpu-scorer", time.time())
    running.until(lambda: running.condition("cpu-scorer", "Scoring")[2].startswith("1 of 2 clusters have no score"))
    running.until(lambda: "longest: b, queue_full" in running.condition("cpu-scorer", "Scoring")[2])
    counted = {"desired": 2, "succeeding": 1, "empty": 0, "failing": 0}
    running.until(lambda: running.status("cpu-scorer")["clusters"] == counted)
    running.client.delete(keys.spoke_queue("b"))
    bench.run(31)
    running.tell("cpu-scorer")
    running.until(lambda: running.condition("cpu-scorer", "Scoring")[:2] == ("True", "CyclesSucceed"))


def test_unhealthy_scoring_api_is_reported_as_inactive_and_not_as_paused(
    running: HubHarness, api: ScriptedServer
) -> None:
    api.script(answer("", 500), path="/healthz")
    running.until(lambda: all(not entry.runnable for entry in running.entries().values()))
    bench = Bench(running.client, now=time.time())
    bench.run(100)
    running.until(
        lambda: (record := running.record("cpu-scorer")) is not None and record.problem.startswith("HTTPError: ")
    )
    fleet = FleetQueries(running.client)
    [scorer] = fleet.scorers().scorers
    assert "status 500" in scorer.problem
    reasons = [(reason.reason, reason.clusters, reason.message) for reason in scorer.reasons]
    assert (scorer.states.skipped, reasons) == (2, [("inactive", 2, scorer.problem)])
    # The live table of the demo shows it as well, without a next run.
    lines = DemoReport(running.client, running.folder, running.out).read_lines()
    assert {(line.failure, line.next_run) for line in lines} == {(scorer.problem, None)}
    # A user's resume sends no ticks for scorers that were not delivered to agents.
    for pair in running.pairs():
        bench.store.resume(pair, now=bench.now)
        bench.store.set_override(pair, paused=False, now=bench.now)
    before = [list(pushed(running.client, cluster)) for cluster in "ab"]
    bench.run(100)
    assert [list(pushed(running.client, cluster)) for cluster in "ab"] == before
    api.script(answer("ok"), path="/healthz")
    running.until(lambda: all(entry.runnable for entry in running.entries().values()))
    running.until(lambda: (record := running.record("cpu-scorer")) is not None and not record.problem)
    bench.run(100)
    assert all(pushed(running.client, cluster) for cluster in "ab")
