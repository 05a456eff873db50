"""What is known of a scoring API after each check."""

from __future__ import annotations

from dsf.api.remoteconfig import RemoteConfig
from dsf.api.types import HealthStatus
from dsf.hub.health import Check, CheckFailure, Health

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
        health = health.after(check, threshold=3)
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
    health = Health().after(FINE, 3)
    for _ in range(10):
        health = health.after(ODD, 3)
    assert (health.status, health.config, health.config_failure) == (HealthStatus.Active, GOOD, BAD)
    health = health.after(FINE, 3)
    assert health.config_failure is None


def test_a_bad_config_does_not_make_an_inactive_one_active() -> None:
    assert statuses(FINE, SICK, SICK, SICK, ODD, ODD, FINE) == ["Active"] * 3 + ["Inactive"] * 3 + ["Active"]


def test_elsewhere_all_stays_until_the_first_check_which_decides() -> None:
    moved = Health().after(FINE, 3).elsewhere()
    assert (moved.status, moved.config, moved.is_checked) == (HealthStatus.Active, GOOD, False)
    assert statuses(SICK, start=moved) == ["Inactive"]
    assert statuses(ODD, start=moved) == ["Inactive"]
    assert statuses(FINE, SICK, start=moved) == ["Active", "Active"]


def test_what_an_earlier_hub_found_counts() -> None:
    known = Health(HealthStatus.Active, GOOD, is_proven=True)
    assert statuses(SICK, start=known) == ["Active"]
    assert statuses(SICK, start=Health(HealthStatus.Active, GOOD)) == ["Inactive"]
    assert known.after(SICK, 3).config == GOOD


def test_a_threshold_of_one() -> None:
    health = Health().after(FINE, 1).after(SICK, 1)
    assert health.status is HealthStatus.Inactive
