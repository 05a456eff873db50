"""Health checks and /config: what makes a scorer Active or Inactive, and what stays in force."""

from __future__ import annotations

import threading
import time

import pytest

from dsf import http
from dsf.errors import HttpError
from dsf.http import addresses
from tests.conftest import SettingsFactory
from tests.integration.hub.world import World, remote_config, scoring_api
from tests.support.httpserver import (
    Gate,
    Handler,
    ScriptedServer,
    answer,
    bomb,
    close_early,
    drip,
    drip_headers,
    endless,
    hang,
)
from tests.support.wait import wait_for


def health(world: World, scorer: str = "cpu-scorer") -> str:
    return str(world.status(scorer).get("healthStatus"))


@pytest.fixture
def one(world: World, api: ScriptedServer) -> World:
    """A folder with one accepted cluster; the hub is not started."""
    world.config()
    world.cluster("a")
    return world


@pytest.mark.parametrize(
    ("mode", "healthz", "config", "expected", "reason"),
    [
        ("None", answer("ok"), answer("", 500), "Active", "HealthCheckPassed"),
        ("None", answer("busy", 500), answer(remote_config()), "Inactive", "HTTPError"),
        ("None", answer("", 404), answer(remote_config()), "Inactive", "HTTPError"),
        ("Full", answer("ok"), answer(remote_config()), "Active", "HealthCheckPassed"),
        ("Full", answer("", 404), answer(remote_config()), "Active", "HealthCheckPassed"),
        ("Full", answer("", 404), answer("", 500), "Inactive", "HTTPError"),
        ("Full", answer("busy", 500), answer(remote_config()), "Inactive", "HTTPError"),
        ("Full", answer("ok"), answer("not json"), "Inactive", "ConfigInvalid"),
        ("Full", answer("ok"), answer("", 302, Location="http://elsewhere.test/"), "Inactive", "Redirect"),
        ("None", answer("", 307, Location="http://169.254.169.254/"), answer(""), "Inactive", "Redirect"),
        ("None", close_early, answer(""), "Inactive", "ConnectionFailed"),
        ("None", hang, answer(""), "Inactive", "Timeout"),
        ("None", drip, answer(""), "Inactive", "Timeout"),
        ("None", drip_headers, answer(""), "Inactive", "Timeout"),
        ("Full", answer("ok"), endless(), "Inactive", "TooLarge"),
        ("Full", answer("ok"), bomb, "Inactive", "TooLarge"),
    ],
)
def test_the_first_check_decides(
    one: World,
    api: ScriptedServer,
    mode: str,
    healthz: Handler,
    config: Handler,
    expected: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if reason == "Timeout":
        monkeypatch.setattr("dsf.hub.health.CHECK_TIMEOUT", 1.0)
    api.script(healthz, path="/healthz")
    api.script(config, path="/config")
    scoring = {"params": {"name": "cpu", "interval": 30}}
    one.scorer("cpu-scorer", api, mode=mode, scoring=scoring)
    one.start()
    one.until(lambda: health(one) == expected)
    one.until(lambda: one.condition("cpu-scorer", "Healthy")[1] == reason)
    if expected == "Active":
        one.until(lambda: one.pairs() == ["a/cpu-scorer"])
    else:
        one.until(lambda: one.condition("cpu-scorer", "Distributed")[1] in ("NotHealthy", "ConfigInvalid"))
        one.until(lambda: one.told("a") == [])
        assert one.pairs() == []


def test_a_scoring_api_that_lets_nobody_in_without_a_password_has_its_health_elsewhere(
    one: World, api: ScriptedServer
) -> None:
    basic = {"username": {"value": "u"}, "password": {"name": "s", "key": "k"}}
    scoring = {"params": {"name": "cpu", "interval": 30}, "auth": {"basic": basic}}
    with ScriptedServer(answer("who are you?", 401)) as guarded:
        one.scorer("cpu-scorer", guarded, mode="None", scoring=scoring)
        one.start()
        one.until(lambda: health(one) == "Inactive")
        reason, message = one.condition("cpu-scorer", "Healthy")[1:]
        assert reason == "HTTPError"
        assert "the hub asks without scoring.auth: let it in, or set another configURL" in message
        # As docs/sources.md has it: configURL is of a server that answers, scoring.host of the one that scores.
        one.scorer("cpu-scorer", api, mode="None", scoring={**scoring, "host": guarded.url})
        one.until(lambda: health(one) == "Active")
        one.until(lambda: one.told("a") == ["cpu-scorer"])
        (told,) = one.summaries("a") or []
        assert told["scoringEndpoint"] == f"{guarded.url}/scoring"
        assert told["scoringAccess"]["methods"]["basic"]["password"] == {"name": "s", "key": "k"}


def test_a_refused_connection_and_a_url_that_is_none(one: World) -> None:
    one.scorer("away", "http://127.0.0.1:9")
    one.scorer("odd", "http://user@127.0.0.1:9")
    one.start()
    one.until(lambda: health(one, "away") == health(one, "odd") == "Inactive")
    assert one.condition("away", "Healthy")[1:] == (
        "ConnectionFailed",
        "GET http://127.0.0.1:9/healthz: Connection refused",
    )
    assert one.condition("odd", "Healthy")[1] == "InvalidURL"
    assert one.condition("away", "ConfigSynced")[1] == "ConnectionFailed"


def test_an_answer_that_is_no_configuration_leaves_the_last_good_one(running: World, api: ScriptedServer) -> None:
    api.script(answer({"detail": "Not Found"}), path="/config")
    running.until(lambda: running.condition("cpu-scorer", "ConfigSynced")[:2] == ("False", "ConfigInvalid"))
    message = running.condition("cpu-scorer", "ConfigSynced")[2]
    assert "is no configuration" in message
    assert "the last good configuration stays in force" in message
    assert running.status("cpu-scorer")["lastSyncedConfig"]["scoring"]["params"] == {"name": "cpu", "interval": 30}
    assert running.told("a") == ["cpu-scorer"]
    assert not any(entry.suspended for entry in running.entries().values())


def test_a_path_in_config_url_is_not_part_of_healthz(one: World, api: ScriptedServer) -> None:
    api.script(answer(remote_config()), path="/scorer-a/config")
    one.scorer("cpu-scorer", f"{api.url}/scorer-a")
    one.start()
    one.until(lambda: health(one) == "Active")
    assert set(api.paths()) == {"/healthz", "/scorer-a/config"}


def test_in_mode_none_config_is_not_asked(one: World, api: ScriptedServer) -> None:
    one.scorer("cpu-scorer", api, mode="None")
    one.start()
    one.until(lambda: len(api.requests) > 3)
    assert set(api.paths()) == {"/healthz"}
    one.until(lambda: one.condition("cpu-scorer", "ConfigSynced")[1] == "MissingScoreName")


def test_active_survives_fewer_failures_than_the_threshold(running: World, api: ScriptedServer) -> None:
    broken, good = answer("busy", 503), Gate(answer("ok"))
    count = len(api.requests)
    api.script(broken, broken, good, path="/healthz")
    running.until(lambda: running.condition("cpu-scorer", "Healthy")[1] == "HealthCheckFailing")
    assert running.condition("cpu-scorer", "Healthy")[0] == "True"
    assert "of 3 failed checks in a row: http://" in running.condition("cpu-scorer", "Healthy")[2]
    good.opened.set()
    running.until(lambda: running.condition("cpu-scorer", "Healthy")[1] == "HealthCheckPassed")
    assert len(api.requests) > count
    assert ("cpu-scorer", "HTTPError", "Warning") not in running.events()
    assert running.told("a") == ["cpu-scorer"]


def test_inactive_keeps_entries_suspended_and_comes_back(running: World, api: ScriptedServer) -> None:
    running.client.hset("dsf:pair:a/cpu-scorer", "n:scheduled", 7)
    api.script(answer("busy", 503), path="/healthz")
    running.until(lambda: health(running) == "Inactive")
    running.until(lambda: running.told("a") == [])
    running.until(lambda: all(entry.suspended for entry in running.entries().values()))
    assert running.pairs() == ["a/cpu-scorer", "b/cpu-scorer"]
    record = running.record("cpu-scorer")
    assert record is not None
    assert record.health == "Inactive"
    # Scores expire in their own time: nobody is told to remove them, and the books stay.
    assert running.client.hget("dsf:pair:a/cpu-scorer", "n:scheduled") == "7"
    running.until(lambda: ("cpu-scorer", "HTTPError", "Warning") in running.events())
    api.script(answer("ok"), path="/healthz")
    running.until(lambda: health(running) == "Active")
    running.until(lambda: not any(entry.suspended for entry in running.entries().values()))
    running.until(lambda: running.told("a") == ["cpu-scorer"])


def test_an_inactive_scorer_that_is_masked_or_removed_loses_its_entries(running: World, api: ScriptedServer) -> None:
    api.script(answer("busy", 503), path="/healthz")
    running.until(lambda: all(entry.suspended for entry in running.entries().values()))
    running.config(("a", "cpu"))
    running.until(lambda: running.pairs() == ["b/cpu-scorer"])
    running.remove("scorers/cpu-scorer.yaml")
    running.until(lambda: running.pairs() == [])


def test_a_bad_config_leaves_the_last_good_one_in_force(running: World, api: ScriptedServer) -> None:
    api.script(answer('{"scoring": {"params": {"interval": "soon"}}}'), path="/config")
    running.until(lambda: running.condition("cpu-scorer", "ConfigSynced")[:2] == ("False", "ConfigInvalid"))
    message = running.condition("cpu-scorer", "ConfigSynced")[2]
    assert "scoring.params.interval: 'soon' is not a whole number" in message
    assert message.endswith("; the last good configuration stays in force")
    seen = len(api.requests)
    running.until(lambda: len(api.requests) > seen + 10)
    assert health(running) == "Active"
    assert running.entries()["a/cpu-scorer"].interval == 30
    assert running.told("a") == ["cpu-scorer"]
    assert running.status("cpu-scorer")["lastSyncedConfig"]["scoring"]["params"]["interval"] == 30
    api.script(answer(remote_config("cpu", 9)), path="/config")
    running.until(lambda: running.condition("cpu-scorer", "ConfigSynced")[:2] == ("True", "Synced"))
    running.until(lambda: running.entries()["a/cpu-scorer"].interval == 9)


def test_to_become_active_again_everything_must_be_good(running: World, api: ScriptedServer) -> None:
    api.script(answer("busy", 503), path="/healthz")
    api.script(answer("not json"), path="/config")
    running.until(lambda: health(running) == "Inactive")
    api.script(answer("ok"), path="/healthz")
    running.until(lambda: running.condition("cpu-scorer", "Healthy")[1] == "ConfigInvalid")
    assert health(running) == "Inactive"
    assert running.status("cpu-scorer")["lastSyncedConfig"]["scoring"]["params"]["name"] == "cpu"
    api.script(answer(remote_config()), path="/config")
    running.until(lambda: health(running) == "Active")


def test_a_changed_url_is_checked_at_once_and_decides_at_once(
    world: World, api: ScriptedServer, redis_url: str, settings_factory: SettingsFactory
) -> None:
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
    world.until(lambda: world.entries()["a/cpu-scorer"].suspended)


def test_a_removed_scorer_is_checked_no_more(running: World, api: ScriptedServer) -> None:
    running.remove("scorers/cpu-scorer.yaml")
    running.until(lambda: running.pairs() == [])
    running.until(lambda: running.record("cpu-scorer") is None)

    def requests() -> int:
        seen = len(api.requests)
        time.sleep(1.2)  # six intervals: the silence itself is what is tested
        return len(api.requests) - seen

    # A check that was under way ends: that is one request, or two. There is no other after it.
    assert (first := requests()) <= 2
    assert first == 0 or requests() == 0


def test_hanging_apis_delay_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsf.hub.health.CONCURRENCY", 4)
    monkeypatch.setattr("dsf.hub.health.CHECK_TIMEOUT", 50.0)
    world.config()
    world.cluster("a")
    with ScriptedServer(hang) as hung, scoring_api() as good:
        for number in range(3):
            world.scorer(f"hung-{number}", hung)
        world.start()
        world.until(lambda: len(hung.requests) == 3)
        began = time.monotonic()
        world.scorer("cpu-scorer", good)
        world.until(lambda: world.pairs() == ["a/cpu-scorer"])
        seen = len(good.requests)
        world.until(lambda: len(good.requests) >= seen + 8)
        assert time.monotonic() - began < 49
        assert len(hung.requests) == 3
        world.stop()


def test_link_local_addresses_are_refused_unless_allowed(one: World) -> None:
    one.scorer("metadata", "http://169.254.169.254")
    one.scorer("mapped", "http://[::ffff:169.254.169.254]:80")
    one.start()
    one.until(lambda: health(one, "metadata") == health(one, "mapped") == "Inactive")
    for name in ("metadata", "mapped"):
        status, reason, message = one.condition(name, "Healthy")
        assert (status, reason) == ("False", "AddressRefused")
        assert "DSF_ALLOW_LINK_LOCAL=true" in message


def test_a_name_is_refused_when_any_of_its_addresses_is_link_local(
    api: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(2, 1, 6, "", ("127.0.0.1", api.port)), (2, 1, 6, "", ("169.254.0.1", api.port))]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: rows)
    url = f"http://names.test:{api.port}/healthz"
    with pytest.raises(HttpError, match=r"names.test stands for 169\.254\.0\.1, a link-local or metadata") as caught:
        http.probe(url, deadline=time.monotonic() + 60, max_bytes=1000)
    assert caught.value.reason == "address_refused"
    assert api.requests == []
    addresses.allow_link_local(True)
    try:
        assert http.probe(url, deadline=time.monotonic() + 60, max_bytes=1000).body == b"ok"
    finally:
        addresses.allow_link_local(False)


def test_credentials_are_not_sent(api: ScriptedServer) -> None:
    found = http.probe(f"{api.url}/healthz", deadline=time.monotonic() + 60, max_bytes=1000)
    assert (found.status, found.body) == (200, b"ok")
    assert "Authorization" not in api.requests[0].headers


def test_checks_leave_no_threads_or_connections(api: ScriptedServer) -> None:
    http.probe(f"{api.url}/healthz", deadline=time.monotonic() + 60, max_bytes=1000)
    before = threading.active_count()
    for _ in range(5):
        http.probe(f"{api.url}/healthz", deadline=time.monotonic() + 60, max_bytes=1000)
    # Those of the server end a moment after the connections.
    wait_for(lambda: threading.active_count() <= before + 1)
