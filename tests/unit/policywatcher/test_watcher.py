"""The loop that applies the rule, and its settings."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from threading import Event

import pytest
from kubernetes import client
from policywatcher.claim import Compliance, PollResult
from policywatcher.cluster import Cluster, ClusterError
from policywatcher.options import OptionError, Options
from policywatcher.watcher import Watcher

from tests.support.httpserver import ScriptedServer, answer

EMPTY, BAD, GOOD = Compliance.EMPTY, Compliance.NONCOMPLIANT, Compliance.COMPLIANT


class FakeCluster:
    """A cluster whose parts can fail; records writes."""

    def __init__(self, policies: Compliance, claim: str | None) -> None:
        self.policies, self.value = policies, claim
        self.failing_parts: set[str] = set()
        self.written_values: list[str] = []

    def compliance(self) -> PollResult:
        self._check("policies")
        return PollResult(self.policies, frozenset([("uid", 1)]) if self.policies is GOOD else frozenset())

    def claim(self) -> str | None:
        self._check("claim")
        return self.value

    def set_claim(self, value: Compliance) -> None:
        self._check("write")
        self.written_values.append(str(value))
        self.value = value

    def _check(self, part: str) -> None:
        if part in self.failing_parts:
            raise ClusterError(f"{part} are away")


class WatcherHarness:
    """A watcher with a manual clock."""

    def __init__(self, policies: Compliance, claim: str | None = "empty") -> None:
        self.now = 0.0
        self.cluster = FakeCluster(policies, claim)
        self.watcher = Watcher(self.cluster, 120, clock=lambda: self.now)

    def poll(self, *, later: float = 0.0) -> str | None:
        self.now += later
        self.watcher.poll()
        return self.cluster.value


def test_missing_claim_is_created() -> None:
    bed = WatcherHarness(EMPTY, claim=None)
    assert bed.poll() == "empty"


def test_outage_of_the_api_server_does_not_count_as_compliance() -> None:
    bed = WatcherHarness(GOOD)
    bed.poll()
    bed.cluster.failing_parts = {"policies"}
    assert bed.poll(later=119) == "empty"
    bed.cluster.failing_parts = set()
    assert bed.poll(later=1) == "empty"
    assert bed.poll(later=119) == "empty"
    assert bed.poll(later=1) == "compliant"
    assert bed.cluster.written_values == ["compliant"]


def test_claim_is_kept_while_the_api_server_is_away() -> None:
    bed = WatcherHarness(GOOD, claim="compliant")
    bed.poll()
    bed.cluster.failing_parts = {"policies", "claim", "write"}
    bed.cluster.policies = BAD
    for _ in range(5):
        assert bed.poll(later=100) == "compliant"
    bed.cluster.failing_parts = set()
    assert bed.poll(later=1) == "noncompliant"


@pytest.mark.parametrize("part", ["claim", "write"])
def test_unwritten_violation_is_written_later(part: str) -> None:
    bed = WatcherHarness(GOOD, claim="compliant")
    bed.poll(later=120)
    bed.cluster.policies, bed.cluster.failing_parts = BAD, {part}
    assert bed.poll(later=30) == "compliant"
    bed.cluster.policies, bed.cluster.failing_parts = GOOD, set()
    assert bed.poll(later=30) == "noncompliant"
    assert bed.poll(later=119) == "noncompliant"
    assert bed.poll(later=1) == "compliant"


def test_deleted_claim_is_restored() -> None:
    bed = WatcherHarness(GOOD)
    bed.poll()
    assert bed.poll(later=120) == "compliant"
    bed.cluster.value = None
    assert bed.poll(later=30) == "compliant"


def test_problem_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="policywatcher")
    bed = WatcherHarness(EMPTY)
    bed.cluster.failing_parts = {"policies"}
    for _ in range(3):
        bed.poll()
    bed.cluster.failing_parts = set()
    bed.poll()
    assert [record.getMessage() for record in caplog.records] == [
        "policies are away; trying again",
        "policies are empty",
        "the API server answers again",
    ]


def test_hint_is_on_the_line_of_its_error() -> None:
    with ScriptedServer(answer("404 page not found\n", 404)) as server:
        cluster = Cluster(client.Configuration(host=server.url), "default", "claim")
        with contextlib.closing(cluster), pytest.raises(ClusterError) as raised:
            cluster.compliance()
    assert "404 page not found; the kind is not known there" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_loop_ends_on_stop() -> None:
    bed, stop = WatcherHarness(BAD), Event()
    stop.set()
    bed.watcher.run(3600, stop)
    assert bed.cluster.written_values == []


def test_defaults_are_those_that_are_documented() -> None:
    assert Options.read({}) == Options(30, 120, "policy-watcher-claim", "default")


def test_settings_are_read() -> None:
    environment = {
        "POLL_INTERVAL_SEC": "0.5",
        "STABLE_DURATION_SEC": " 0 ",
        "TARGET_CLAIM_NAME": "ready.example.com",
        "WATCH_NAMESPACE": "cluster1",
    }
    assert Options.read(environment) == Options(0.5, 0, "ready.example.com", "cluster1")


@pytest.mark.parametrize(
    "environment",
    [
        {"POLL_INTERVAL_SEC": "0"},
        {"POLL_INTERVAL_SEC": "-1"},
        {"POLL_INTERVAL_SEC": "30s"},
        {"POLL_INTERVAL_SEC": "nan"},
        {"STABLE_DURATION_SEC": "inf"},
        {"STABLE_DURATION_SEC": "-0.1"},
        {"STABLE_DURATION_SEC": "100000"},
        {"TARGET_CLAIM_NAME": "Not a name"},
        {"WATCH_NAMESPACE": "a/../b"},
        {"WATCH_NAMESPACE": "x" * 254},
    ],
)
def test_invalid_setting_is_named(environment: Mapping[str, str]) -> None:
    (name,) = environment
    with pytest.raises(OptionError, match=f"^{name}=.*; allowed is "):
        Options.read(environment)
