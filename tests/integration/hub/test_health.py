"""Health checks and /config: conditions of Active and Inactive, and the configuration that stays in force."""

from __future__ import annotations

import time

import pytest

from tests.integration.hub.world import HubHarness, remote_config, scoring_api
from tests.support.httpserver import ScriptedServer, answer


def health(world: HubHarness, scorer: str = "cpu-scorer") -> str:
    return str(world.status(scorer).get("healthStatus"))


@pytest.fixture
def world_with_cluster(world: HubHarness, api: ScriptedServer) -> HubHarness:
    """A folder with one accepted cluster; the hub is not started."""
    world.config()
    world.cluster("a")
    return world


def test_scoring_api_with_password_is_checked_at_a_separate_config_url(
    world_with_cluster: HubHarness, api: ScriptedServer
) -> None:
    basic = {"username": {"value": "u"}, "password": {"name": "s", "key": "k"}}
    scoring = {"params": {"name": "cpu", "interval": 30}, "auth": {"basic": basic}}
    with ScriptedServer(answer("who are you?", 401)) as guarded:
        world_with_cluster.scorer("cpu-scorer", guarded, mode="None", scoring=scoring)
        world_with_cluster.start()
        world_with_cluster.until(lambda: health(world_with_cluster) == "Inactive")
        reason, message = world_with_cluster.condition("cpu-scorer", "Healthy")[1:]
        assert reason == "HTTPError"
        assert "the hub asks without scoring.auth: let it in, or set another configURL" in message
        # As in docs/sources.md: configURL is on a reachable server, scoring.host on the one that scores.
        world_with_cluster.scorer("cpu-scorer", api, mode="None", scoring={**scoring, "host": guarded.url})
        world_with_cluster.until(lambda: health(world_with_cluster) == "Active")
        world_with_cluster.until(lambda: world_with_cluster.delivered_scorers("a") == ["cpu-scorer"])
        (summary,) = world_with_cluster.summaries("a") or []
        assert summary["scoringEndpoint"] == f"{guarded.url}/scoring"
        assert summary["scoringAccess"]["methods"]["basic"]["password"] == {"name": "s", "key": "k"}


def test_inactive_scorer_keeps_its_entries_and_recovers(running: HubHarness, api: ScriptedServer) -> None:
    running.client.hset("dsf:pair:a/cpu-scorer", "n:scheduled", 7)
    api.script(answer("busy", 503), path="/healthz")
    running.until(lambda: health(running) == "Inactive")
    running.until(lambda: running.delivered_scorers("a") == [])
    running.until(lambda: not any(entry.runnable for entry in running.entries().values()))
    assert running.pairs() == ["a/cpu-scorer", "b/cpu-scorer"]
    record = running.record("cpu-scorer")
    assert record is not None
    assert record.health == "Inactive"
    # Scores expire by themselves: nobody removes them, and the records of cycles stay.
    assert running.client.hget("dsf:pair:a/cpu-scorer", "n:scheduled") == "7"
    running.until(lambda: ("cpu-scorer", "HTTPError", "Warning") in running.events())
    api.script(answer("ok"), path="/healthz")
    running.until(lambda: health(running) == "Active")
    running.until(lambda: all(entry.runnable for entry in running.entries().values()))
    running.until(lambda: running.delivered_scorers("a") == ["cpu-scorer"])


def test_invalid_config_leaves_the_last_valid_config_in_force(running: HubHarness, api: ScriptedServer) -> None:
    api.script(answer('{"scoring": {"params": {"interval": "soon"}}}'), path="/config")
    running.until(lambda: running.condition("cpu-scorer", "ConfigSynced")[:2] == ("False", "ConfigInvalid"))
    message = running.condition("cpu-scorer", "ConfigSynced")[2]
    assert "scoring.params.interval: 'soon' is not a whole number" in message
    assert message.endswith("; the last good configuration stays in force")
    request_count = len(api.requests)
    running.until(lambda: len(api.requests) > request_count + 10)
    assert health(running) == "Active"
    assert running.entries()["a/cpu-scorer"].interval == 30
    assert running.delivered_scorers("a") == ["cpu-scorer"]
    assert running.status("cpu-scorer")["lastSyncedConfig"]["scoring"]["params"]["interval"] == 30
    api.script(answer(remote_config("cpu", 9)), path="/config")
    running.until(lambda: running.condition("cpu-scorer", "ConfigSynced")[:2] == ("True", "Synced"))
    running.until(lambda: {entry.interval for entry in running.entries().values()} == {9})
    assert running.status("cpu-scorer")["lastSyncedConfig"]["scoring"]["params"]["interval"] == 9


def test_changed_config_url_is_checked_and_applied_at_once(world: HubHarness, api: ScriptedServer) -> None:
    world.settings = world.settings.model_copy(update={"health_interval": 600.0})
    world.config()
    world.cluster("a")
    world.scorer("cpu-scorer", api)
    world.start()
    world.until(lambda: world.pairs() == ["a/cpu-scorer"])
    with scoring_api("cpu", 11) as other:
        world.scorer("cpu-scorer", other)
        world.until(lambda: world.entries()["a/cpu-scorer"].interval == 11)
    world.scorer("cpu-scorer", "http://127.0.0.1:9")
    world.until(lambda: health(world) == "Inactive")
    world.until(lambda: not world.entries()["a/cpu-scorer"].runnable)


def test_removed_scorer_is_no_longer_checked(running: HubHarness, api: ScriptedServer) -> None:
    running.remove("scorers/cpu-scorer.yaml")
    running.until(lambda: running.pairs() == [])
    running.until(lambda: running.record("cpu-scorer") is None)

    def requests() -> int:
        request_count = len(api.requests)
        time.sleep(1.2)  # six intervals: the silence itself is what is tested
        return len(api.requests) - request_count

    # A running check ends: that is one request, or two, in two attempts where it has to wait for the CPU.
    assert (first := requests()) <= 2
    assert first == 0 or (second := requests()) == 0 or (first + second <= 2 and requests() == 0)
