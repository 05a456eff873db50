"""The health of a scoring API after each check."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from dsf.api.remoteconfig import RemoteConfig
from dsf.api.types import ConfigSyncMode, HealthStatus
from dsf.backends.protocol import Kind, ObjectKey
from dsf.http import addresses
from dsf.hub import health
from dsf.hub.health import CheckResult, Health, HealthMonitor, HealthTarget, check
from dsf.hub.scorerplan import Obstacle
from dsf.process.outage import Outage
from dsf.settings import Settings
from tests.support.httpserver import (
    Handler,
    ScriptedServer,
    answer,
    close_early,
    hang,
    send_endless,
)
from tests.support.wait import wait_for

GOOD = RemoteConfig(name="good")
CONFIG = {"name": "good"}
BAD = Obstacle("ConfigInvalid", "not JSON")
DOWN = Obstacle("HTTPError", "status 503")
FINE = CheckResult(None, GOOD)
SICK = CheckResult(DOWN, GOOD)
ODD = CheckResult(None, None, BAD)


def statuses(*checks: CheckResult, start: Health | None = None) -> list[str]:
    health = start or Health()
    values = []
    for result in checks:
        health = health.apply_check(result)
        values.append(health.status.value)
    return values


def test_first_check_decides_the_status() -> None:
    assert statuses(FINE) == ["Active"]
    assert statuses(SICK) == ["Inactive"]
    assert statuses(ODD) == ["Inactive"]


def test_three_failures_in_a_row_make_an_active_one_inactive() -> None:
    assert statuses(FINE, SICK, SICK, FINE, SICK, SICK, SICK) == [*["Active"] * 6, "Inactive"]
    assert statuses(FINE, SICK, SICK, SICK, FINE, SICK) == ["Active"] * 3 + ["Inactive", "Active", "Active"]


def test_inactive_health_is_unchanged_by_further_failures() -> None:
    health = Health().apply_check(FINE)
    for _ in range(3):
        health = health.apply_check(SICK)
    assert health.status is HealthStatus.Inactive
    assert health.apply_check(SICK) == health


def test_check_request_before_tracking_is_answered_by_the_first_check(
    monkeypatch: pytest.MonkeyPatch, settings_factory: Callable[..., Settings]
) -> None:
    answered: list[str] = []
    monkeypatch.setattr(health, "check", lambda *_, **__: FINE)
    monitor = HealthMonitor(
        settings_factory(health_interval=600),
        Outage("Redis"),
        lambda _: None,
        on_check=lambda *about: answered.append(about[-1]),
    )
    key = ObjectKey(Kind.SCORER, "hub", "s")
    monitor.request_check(key, "1-0")
    monitor.track(key, HealthTarget("http://s.test/config", ConfigSyncMode.Full, uid="u"), Health())
    monitor.start()
    try:
        wait_for(lambda: answered == ["1-0"], 10, "the check for it")
    finally:
        monitor.stop()


def test_bad_config_keeps_health_active_and_the_last_good_config() -> None:
    health = Health().apply_check(FINE)
    for _ in range(10):
        health = health.apply_check(ODD)
    assert (health.status, health.config, health.config_failure) == (HealthStatus.Active, GOOD, BAD)
    health = health.apply_check(FINE)
    assert health.config_failure is None


def test_bad_config_does_not_activate_inactive_health() -> None:
    assert statuses(FINE, SICK, SICK, SICK, ODD, ODD, FINE) == ["Active"] * 3 + ["Inactive"] * 3 + ["Active"]


def test_health_of_a_moved_scorer_stays_until_the_first_check() -> None:
    moved = Health().apply_check(FINE).reset_checks()
    assert (moved.status, moved.config, moved.is_checked) == (HealthStatus.Active, GOOD, False)
    assert statuses(SICK, start=moved) == ["Inactive"]
    assert statuses(ODD, start=moved) == ["Inactive"]
    assert statuses(FINE, SICK, start=moved) == ["Active", "Active"]


def test_health_of_an_earlier_hub_is_respected() -> None:
    earlier_health = Health(HealthStatus.Active, GOOD, is_proven=True)
    assert statuses(SICK, start=earlier_health) == ["Active"]
    assert statuses(SICK, start=Health(HealthStatus.Active, GOOD)) == ["Inactive"]
    assert earlier_health.apply_check(SICK).config == GOOD


@pytest.mark.parametrize(
    ("mode", "healthz", "config", "reason"),
    [
        ("None", answer("ok"), answer("", 500), ""),
        ("None", answer("busy", 500), answer(CONFIG), "HTTPError"),
        ("None", answer("", 404), answer(CONFIG), "HTTPError"),
        ("Full", answer("ok"), answer(CONFIG), ""),
        ("Full", answer("", 404), answer(CONFIG), ""),
        ("Full", answer("", 404), answer("", 500), "HTTPError"),
        ("Full", answer("busy", 500), answer(CONFIG), "HTTPError"),
        ("Full", answer("ok"), answer("not json"), "ConfigInvalid"),
        ("Full", answer("ok"), answer("", 302, Location="http://elsewhere.test/"), "Redirect"),
        ("None", answer("", 307, Location="http://169.254.169.254/"), answer(""), "Redirect"),
        ("None", close_early, answer(""), "ConnectionFailed"),
        ("None", hang, answer(""), "Timeout"),
        ("Full", answer("ok"), send_endless(), "TooLarge"),
    ],
)
def test_check_sets_status_and_failure_reason(mode: str, healthz: Handler, config: Handler, reason: str) -> None:
    with ScriptedServer(healthz=healthz, config=config) as server:
        target = HealthTarget(f"{server.url}/config", ConfigSyncMode(mode))
        result = Health().apply_check(check(target, timeout=0.5 if reason == "Timeout" else 30))
    assert (result.status.value, result.failure.reason if result.failure else "") == (
        ("Inactive" if reason else "Active"),
        reason,
    )
    assert ("/config" in server.paths()) == (mode == "Full")
    assert all("Authorization" not in request.headers for request in server.requests)


@pytest.mark.parametrize(
    ("url", "reason", "message"),
    [
        ("http://127.0.0.1:9", "ConnectionFailed", "GET http://127.0.0.1:9/healthz: Connection refused"),
        ("http://user@127.0.0.1:9", "InvalidURL", "spec.configURL: "),
        ("http://169.254.169.254", "AddressRefused", "DSF_ALLOW_LINK_LOCAL=true"),
        ("http://[::ffff:169.254.169.254]:80", "AddressRefused", "DSF_ALLOW_LINK_LOCAL=true"),
    ],
)
def test_unusable_health_url_is_reported(url: str, reason: str, message: str) -> None:
    failed_request = check(HealthTarget(f"{url}/config", ConfigSyncMode.Full), timeout=30).health_failure
    assert failed_request is not None
    assert failed_request.reason == reason
    assert message in failed_request.message


def test_healthz_url_ignores_the_path_of_config_url() -> None:
    with ScriptedServer(answer("no such path", 404)) as server:
        server.script(answer("ok"), path="/healthz")
        server.script(answer(CONFIG), path="/scorer-a/config")
        target = HealthTarget(f"{server.url}/scorer-a/config", ConfigSyncMode.Full)
        assert Health().apply_check(check(target, timeout=30)).status is HealthStatus.Active
    assert set(server.paths()) == {"/healthz", "/scorer-a/config"}


def test_host_name_with_any_link_local_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(answer("ok")) as server:
        rows = [(2, 1, 6, "", (address, server.port)) for address in ("127.0.0.1", "169.254.0.1")]
        monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: rows)
        target = HealthTarget(f"http://names.test:{server.port}/config", ConfigSyncMode.None_)
        failed_request = check(target, timeout=60).health_failure
        assert failed_request is not None
        assert failed_request.reason == "AddressRefused"
        assert "names.test resolves to 169.254.0.1, a link-local or metadata" in failed_request.message
        assert server.requests == []
        addresses.allow_link_local(True)
        try:
            assert check(target, timeout=60).health_failure is None
        finally:
            addresses.allow_link_local(False)


def test_checks_leave_no_threads_or_connections() -> None:
    with ScriptedServer(answer("ok")) as server:
        target = HealthTarget(f"{server.url}/config", ConfigSyncMode.None_)
        check(target, timeout=60)
        before = threading.active_count()
        for _ in range(5):
            check(target, timeout=60)
        # Threads of the server end shortly after their connections.
        wait_for(lambda: threading.active_count() <= before + 1)


class _Apis:
    """Scoring APIs; those of one namespace hang until the gate opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun: Counter[str] = Counter()

    def check(self, target: HealthTarget, *, timeout: float) -> CheckResult:
        del timeout
        self.begun[target.uid] += 1
        if target.uid == "tenant":
            assert self.gate.wait(60)
        return FINE


def test_hanging_scoring_apis_of_a_namespace_delay_no_others(
    monkeypatch: pytest.MonkeyPatch, settings_factory: Callable[..., Settings]
) -> None:
    apis = _Apis()
    changed: list[ObjectKey] = []
    monkeypatch.setattr(health, "check", apis.check)
    monkeypatch.setattr(health, "CONCURRENCY", 4)
    monitor = HealthMonitor(settings_factory(health_interval=600), Outage("Redis"), changed.append)

    def track(namespace: str, number: int) -> ObjectKey:
        key = ObjectKey(Kind.SCORER, namespace, f"{namespace}-{number}")
        monitor.track(key, HealthTarget("http://s.test/config", ConfigSyncMode.Full, uid=namespace), Health())
        return key

    tenant_keys = [track("tenant", number) for number in range(20)]
    hub_keys = [track("hub", 0)]
    monitor.start()
    try:
        wait_for(lambda: set(changed) == set(hub_keys), 10, "the check behind twenty that hang")
        hub_keys += [track("hub", number) for number in range(1, 20)]
        wait_for(lambda: set(changed) == set(hub_keys), 10, "more of them")
        assert apis.begun["tenant"] == 2
        monitor.forget(tenant_keys[-1])
        apis.gate.set()
        # Every scorer that waited is checked exactly once.
        wait_for(lambda: set(changed) == {*hub_keys, *tenant_keys[:-1]}, 10, "the others")
        assert apis.begun == {"hub": 20, "tenant": 19}
    finally:
        apis.gate.set()
        monitor.stop()


def test_configs_of_a_namespace_take_its_share_of_memory(
    monkeypatch: pytest.MonkeyPatch, settings_factory: Callable[..., Settings]
) -> None:
    """The hub keeps the last /config of each scorer, of up to a megabyte, and a namespace may have many scorers."""
    numbers = itertools.count()
    monkeypatch.setattr(
        health, "check", lambda *_, **__: CheckResult(None, RemoteConfig(name=f"{next(numbers)}" + "n" * 100_000))
    )
    monkeypatch.setattr(health, "MAX_SHARED_BYTES", 250_000)
    monkeypatch.setattr(health, "MIN_SHARE", 0)
    settings = settings_factory(health_interval=0.1, scorer_namespaces=["tenant"])
    monitor = HealthMonitor(settings, Outage("Redis"), lambda _: None)
    keys = {name: [ObjectKey(Kind.SCORER, name, f"s{number}") for number in range(5)] for name in ("hub", "tenant")}

    def count_kept(namespace: str) -> int:
        states = [monitor.get_health(key) for key in keys[namespace]]
        assert all(state is not None and state.is_checked for state in states)
        return sum(state.config is not None for state in states if state is not None)

    for name, members in keys.items():
        for key in members:
            target = HealthTarget("http://s.test/config", ConfigSyncMode.Full, shows_responses=name == "hub")
            monitor.track(key, target, Health())
    monitor.start()
    try:
        wait_for(lambda: count_kept("hub") == 5, 10, "the configs of the hub's own scorers")
        assert wait_for(lambda: count_kept("tenant"), 10) == 2
        failures = {
            state.config_failure.message
            for key in keys["tenant"]
            if (state := monitor.get_health(key)) and state.config_failure
        }
        assert "namespace tenant take more than 250000 bytes" in str(failures)
        # A deleted scorer leaves its room.
        for key in keys["tenant"][:3]:
            monitor.forget(key)
        del keys["tenant"][:3]
        wait_for(lambda: count_kept("tenant") == 2, 10, "the configs of the others")
    finally:
        monitor.stop()
