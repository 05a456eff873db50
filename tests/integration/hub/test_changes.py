"""A user's change of a scorer becomes an Event on its DynamicScorer, once."""

from __future__ import annotations

import json
import time

from dsf import keys
from dsf.fleet.changes import Action, Actor, UserAction, record_change
from tests.integration.hub.world import HubHarness

ANN = Actor(name="ann", claimed=False, way="page")
BOB = Actor(name="bob@laptop", claimed=True, way="cli")


def change_events(world: HubHarness) -> list[tuple[str, str]]:
    """Reason and message of the events of people's changes."""
    reasons = ("Paused", "Rescored", "IntervalChanged")
    events = world.read("events.yaml") or []
    return [(event["reason"], event["message"]) for event in events if event["reason"] in reasons]


def test_user_action_becomes_an_event_of_its_scorer(running: HubHarness) -> None:
    running.until(lambda: running.record("cpu-scorer") is not None)
    record_change(
        running.client, ANN, UserAction(action=Action.PAUSE, scorer="cpu-scorer", clusters=["a"], note="power work")
    )
    running.until(lambda: len(change_events(running)) == 1)
    record_change(running.client, BOB, UserAction(action=Action.RESCORE, scorer="cpu-scorer"))
    record_change(running.client, BOB, UserAction(action=Action.RESCORE, scorer="no-such-scorer"))
    record_change(running.client, BOB, UserAction(action=Action.ROTATE, clusters=["a"]))
    last = record_change(running.client, BOB, UserAction(action=Action.INTERVAL, scorer="cpu-scorer", detail="5 s"))
    running.until(lambda: running.client.get(keys.CHANGES_NOTIFIED) == last)
    expected_events = [
        ("Paused", "paused on a by ann, page: power work"),
        ("Rescored", "scored now on all clusters by bob@laptop (claimed), cli"),
        ("IntervalChanged", "interval set on all clusters (5 s) by bob@laptop (claimed), cli"),
    ]
    running.until(lambda: change_events(running) == expected_events)
    assert {name for name, reason, _ in running.events() if reason in ("Paused", "Rescored")} == {"cpu-scorer"}


def test_user_actions_during_an_outage_of_the_hub_become_events_once(running: HubHarness) -> None:
    running.until(lambda: running.record("cpu-scorer") is not None)
    first = record_change(running.client, ANN, UserAction(action=Action.PAUSE, scorer="cpu-scorer"))
    running.until(lambda: running.client.get(keys.CHANGES_NOTIFIED) == first)
    running.stop()
    missed = record_change(running.client, ANN, UserAction(action=Action.RESCORE, scorer="cpu-scorer"))
    running.start()
    running.until(lambda: running.client.get(keys.CHANGES_NOTIFIED) == missed)
    running.stop()
    assert [reason for reason, _ in change_events(running)] == ["Paused", "Rescored"]
    # All that is known is of two hours ago, but for one.
    running.client.delete(keys.CHANGES, keys.CHANGES_NOTIFIED)
    text = json.dumps({"action": "interval", "scorer": "cpu-scorer", "by": "ann"})
    running.client.xadd(keys.CHANGES, {"change": text}, id=f"{int((time.time() - 7200) * 1000)}-0")
    newest = record_change(running.client, BOB, UserAction(action=Action.PAUSE, scorer="cpu-scorer", clusters=["b"]))
    running.start()
    running.until(lambda: running.client.get(keys.CHANGES_NOTIFIED) == newest)
    running.stop()
    assert [reason for reason, _ in change_events(running)] == ["Paused", "Rescored", "Paused"]
