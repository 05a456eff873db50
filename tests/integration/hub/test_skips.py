"""Clusters without a score because beat sends them no ticks: the status of the DynamicScorer says so and why."""

from __future__ import annotations

import time

from tests.integration.hub.world import World
from tests.integration.schedule.support import Bench


def test_a_scorer_that_gets_no_ticks_says_why_until_it_gets_one(running: World) -> None:
    running.until(lambda: running.pairs() == ["a/cpu-scorer", "b/cpu-scorer"])
    bench = Bench(running.client, now=time.time())
    for pair in running.pairs():
        bench.store.set_override(pair, paused=True, now=bench.now)
    bench.run(100)
    running.tell("cpu-scorer")
    running.until(lambda: running.condition("cpu-scorer", "Scoring")[1] == "TicksSkipped")
    status, _, message = running.condition("cpu-scorer", "Scoring")
    assert status == "False"
    assert message.startswith("2 of 2 clusters have no score, for they are sent no ticks; longest: ")
    assert message.endswith("paused: it is paused: dsf schedule list says by whom, dsf schedule resume ends it")
    running.until(lambda: ("cpu-scorer", "TicksSkipped", "Warning") in running.events())
    # One of them scores again; of the other one it is still said.
    bench.store.resume("a/cpu-scorer", now=bench.now)
    bench.run(1)
    running.succeed("a", "cpu-scorer", time.time())
    running.until(lambda: running.condition("cpu-scorer", "Scoring")[2].startswith("1 of 2 clusters have no score"))
    assert "longest: b, paused" in running.condition("cpu-scorer", "Scoring")[2]
    assert running.status("cpu-scorer")["clusters"] == {"desired": 2, "succeeding": 1, "failing": 0}
    bench.store.resume("b/cpu-scorer", now=bench.now)
    bench.run(1)
    running.tell("cpu-scorer")
    running.until(lambda: running.condition("cpu-scorer", "Scoring")[:2] == ("True", "CyclesSucceed"))
