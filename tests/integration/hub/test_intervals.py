"""The status of a DynamicScorer says which interval is in force, and which one is declared."""

from __future__ import annotations

import time

from dsf.store.entries import ALL_CLUSTERS
from tests.integration.hub.world import HubHarness

EVERYWHERE = f"{ALL_CLUSTERS}/cpu-scorer"


def _shown(world: HubHarness) -> tuple[int, int, int]:
    status = world.status("cpu-scorer")
    return status["interval"], status["declaredInterval"], status["clustersWithOtherInterval"]


def test_interval_override_is_in_the_status_at_once(running: HubHarness) -> None:
    # A periodic resync would hide a missing notification.
    running.resync = 600.0
    running.restart()
    running.until(lambda: _shown(running) == (30, 30, 0))
    running.schedule.set_override(EVERYWHERE, interval=5)
    running.until(lambda: _shown(running) == (5, 30, 0), timeout=5)
    running.schedule.set_override("a/cpu-scorer", interval=7)
    running.until(lambda: _shown(running) == (5, 30, 1), timeout=5)
    # An override equal to the declared interval does not count as another interval.
    running.schedule.set_override("b/cpu-scorer", interval=5)
    running.schedule.reset("a/cpu-scorer")
    running.until(lambda: _shown(running) == (5, 30, 0), timeout=5)
    running.schedule.reset(EVERYWHERE)
    running.until(lambda: _shown(running) == (30, 30, 1), timeout=5)
    # The same after a restart of the hub.
    running.stop()
    running.schedule.set_override(EVERYWHERE, interval=6)
    running.start()
    running.until(lambda: _shown(running) == (6, 30, 1))


def test_user_pause_is_in_the_status_until_it_ends(running: HubHarness) -> None:
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
    pause_end = time.time() + 2
    running.schedule.set_override(EVERYWHERE, paused=True, paused_until=pause_end, note="release", by="ann")
    # The condition changes by itself when the pause ends.
    running.until(lambda: running.condition("cpu-scorer", "Scoring")[1] == "NoCyclesYet")
    assert time.time() >= pause_end
