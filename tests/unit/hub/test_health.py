"""What is known of a scoring API after each check."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from dsf.api.remoteconfig import RemoteConfig
from dsf.api.types import ConfigSyncMode, HealthStatus
from dsf.backends.protocol import Kind, ObjectKey
from dsf.hub import health
from dsf.hub.health import Check, CheckFailure, Health, HealthMonitor, HealthTarget
from dsf.settings import Settings
from tests.support.wait import wait_for

GOOD = RemoteConfig(name="good")
BAD = CheckFailure("ConfigInvalid", "not JSON")
DOWN = CheckFailure("HTTPError", "status 503")
FINE = Check(None, GOOD)
SICK = Check(DOWN, GOOD)
ODD = Check(None, None, BAD)


def statuses(*checks: Check, start: Health | None = None) -> list[str]:
    health = start or Health()
    found = []
    for check in checks:
        health = health.after(check)
        found.append(health.status.value)
    return found


def test_the_first_check_decides() -> None:
    assert statuses(FINE) == ["Active"]
    assert statuses(SICK) == ["Inactive"]
    assert statuses(ODD) == ["Inactive"]


def test_three_failures_in_a_row_make_an_active_one_inactive() -> None:
    assert statuses(FINE, SICK, SICK, FINE, SICK, SICK, SICK) == [*["Active"] * 6, "Inactive"]
    assert statuses(FINE, SICK, SICK, SICK, FINE, SICK) == ["Active"] * 3 + ["Inactive", "Active", "Active"]


def test_a_bad_config_keeps_an_active_one_active_and_the_last_good_config() -> None:
    health = Health().after(FINE)
    for _ in range(10):
        health = health.after(ODD)
    assert (health.status, health.config, health.config_failure) == (HealthStatus.Active, GOOD, BAD)
    health = health.after(FINE)
    assert health.config_failure is None


def test_a_bad_config_does_not_make_an_inactive_one_active() -> None:
    assert statuses(FINE, SICK, SICK, SICK, ODD, ODD, FINE) == ["Active"] * 3 + ["Inactive"] * 3 + ["Active"]


def test_elsewhere_all_stays_until_the_first_check_which_decides() -> None:
    moved = Health().after(FINE).elsewhere()
    assert (moved.status, moved.config, moved.is_checked) == (HealthStatus.Active, GOOD, False)
    assert statuses(SICK, start=moved) == ["Inactive"]
    assert statuses(ODD, start=moved) == ["Inactive"]
    assert statuses(FINE, SICK, start=moved) == ["Active", "Active"]


def test_what_an_earlier_hub_found_counts() -> None:
    known = Health(HealthStatus.Active, GOOD, is_proven=True)
    assert statuses(SICK, start=known) == ["Active"]
    assert statuses(SICK, start=Health(HealthStatus.Active, GOOD)) == ["Inactive"]
    assert known.after(SICK).config == GOOD


class _Apis:
    """Scoring APIs of which those of one namespace hang until they are let go."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun: Counter[str] = Counter()

    def check(self, target: HealthTarget, *, timeout: float) -> Check:
        del timeout
        self.begun[target.uid] += 1
        if target.uid == "tenant":
            assert self.gate.wait(60)
        return FINE


def test_a_namespaces_hanging_scoring_apis_delay_no_others(
    monkeypatch: pytest.MonkeyPatch, settings_factory: Callable[..., Settings]
) -> None:
    apis = _Apis()
    changed: list[ObjectKey] = []
    monkeypatch.setattr(health, "check", apis.check)
    monkeypatch.setattr(health, "CONCURRENCY", 4)
    monitor = HealthMonitor(settings_factory(health_interval=600), changed.append)

    def track(namespace: str, number: int) -> ObjectKey:
        key = ObjectKey(Kind.SCORER, namespace, f"{namespace}-{number}")
        monitor.track(key, HealthTarget("http://s.test/config", ConfigSyncMode.Full, uid=namespace), Health())
        return key

    theirs = [track("tenant", number) for number in range(20)]
    own = [track("hub", 0)]
    monitor.start()
    try:
        wait_for(lambda: set(changed) == set(own), 10, "the check behind twenty that hang")
        own += [track("hub", number) for number in range(1, 20)]
        wait_for(lambda: set(changed) == set(own), 10, "more of them")
        assert apis.begun["tenant"] == 2
        monitor.forget(theirs[-1])
        apis.gate.set()
        # None is forgotten that had to wait, and each is checked once.
        wait_for(lambda: set(changed) == {*own, *theirs[:-1]}, 10, "the others")
        assert apis.begun == {"hub": 20, "tenant": 19}
    finally:
        apis.gate.set()
        monitor.stop()
