"""The status of a DynamicScorer says which interval is in force, and which one is declared."""

from __future__ import annotations

import time
from functools import partial

from dsf.api.types import PAUSED_UNTIL_ANNOTATION
from dsf.store.schedule import ALL_CLUSTERS
from tests.integration.hub.world import World
from tests.support.httpserver import ScriptedServer

EVERYWHERE = f"{ALL_CLUSTERS}/cpu-scorer"


def _shown(world: World) -> tuple[int, int, int]:
    status = world.status("cpu-scorer")
    return status["interval"], status["declaredInterval"], status["clustersWithOtherInterval"]


def _is_suspended(world: World, scorer: str) -> bool:
    return world.condition(scorer, "Scoring")[1] == "Suspended"


def test_an_interval_set_by_hand_is_in_the_status_at_once(running: World) -> None:
    # What the hub finds when it looks at everything would hide that it is not told.
    running.resync = 600.0
    running.restart()
    running.until(lambda: _shown(running) == (30, 30, 0))
    running.schedule.set_override(EVERYWHERE, interval=5)
    running.until(lambda: _shown(running) == (5, 30, 0), timeout=5)
    running.schedule.set_override("a/cpu-scorer", interval=7)
    running.until(lambda: _shown(running) == (5, 30, 1), timeout=5)
    # One of its own that is no other is none.
    running.schedule.set_override("b/cpu-scorer", interval=5)
    running.schedule.reset("a/cpu-scorer")
    running.until(lambda: _shown(running) == (5, 30, 0), timeout=5)
    running.schedule.reset(EVERYWHERE)
    running.until(lambda: _shown(running) == (30, 30, 1), timeout=5)


def test_an_interval_set_by_hand_stays_in_the_status_when_the_hub_starts_anew(running: World) -> None:
    running.stop()
    running.schedule.set_override(EVERYWHERE, interval=5)
    running.start()
    running.until(lambda: _shown(running) == (5, 30, 0))


def test_what_a_person_paused_is_in_the_status_until_it_ends(running: World) -> None:
    running.resync = 600.0
    running.restart()
    running.until(lambda: running.condition("cpu-scorer", "Scoring")[1] == "NoCyclesYet")
    running.schedule.set_override("a/cpu-scorer", paused=True, note="disk is full", by="ann")
    running.until(lambda: "paused" in running.condition("cpu-scorer", "Scoring")[2])
    status, reason, message = running.condition("cpu-scorer", "Scoring")
    assert (status, reason) == ("Unknown", "NoCyclesYet")
    assert message.endswith("; 1 of 2 clusters are paused, a: paused by ann: disk is full")
    running.schedule.reset("a/cpu-scorer")
    later = time.time() + 3600
    running.schedule.set_override(EVERYWHERE, paused=True, paused_until=later, note="release", by="ann")
    running.until(lambda: running.condition("cpu-scorer", "Scoring")[1] == "Paused")
    assert running.condition("cpu-scorer", "Scoring")[2].endswith("Z: release")
    until = time.time() + 2
    running.schedule.set_override(EVERYWHERE, paused=True, paused_until=until, note="release", by="ann")
    # By itself, when the pause ends.
    running.until(lambda: running.condition("cpu-scorer", "Scoring")[1] == "NoCyclesYet")
    assert time.time() >= until


def test_pauses_until_the_end_of_all_calendars_keep_no_other_scorer_from_running(
    running: World, api: ScriptedServer
) -> None:
    running.schedule.set_override(EVERYWHERE, paused=True, paused_until=1e300, note="release", by="ann")
    running.until(lambda: running.condition("cpu-scorer", "Scoring")[1] == "Paused")
    # More than there are workers, as each could take one with it.
    for number in range(4):
        metadata = {"annotations": {PAUSED_UNTIL_ANNOTATION: "9999-12-31T00:00:00Z"}}
        scoring = {"params": {"name": f"paused-{number}", "interval": 30}}
        running.scorer(f"paused-{number}", api, mode="None", metadata=metadata, scoring=scoring)
    for number in range(4):
        running.until(partial(_is_suspended, running, f"paused-{number}"))
    running.scorer("other-scorer", api, mode="None", scoring={"params": {"name": "other", "interval": 30}})
    running.until(lambda: "a/other-scorer" in running.pairs())
    running.schedule.reset(EVERYWHERE)
    running.until(lambda: running.condition("cpu-scorer", "Scoring")[1] == "NoCyclesYet")
