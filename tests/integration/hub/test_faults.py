"""Restarts of the hub and of Redis, and data from before the restart."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.integration.hub.world import HubHarness
from tests.support.fixtures import SettingsFactory
from tests.support.httpserver import ScriptedServer, answer
from tests.support.redisserver import RedisServer


def test_hub_restart_keeps_statuses_and_due_times(running: HubHarness, api: ScriptedServer) -> None:
    running.until(lambda: running.condition("cpu-scorer", "Distributed")[0] == "True")
    running.succeed("a", "cpu-scorer", time.time())
    running.until(lambda: running.status("cpu-scorer")["clusters"]["succeeding"] == 1)
    running.stop()
    # The restart must work although the API is slow or down at that moment.
    api.script(answer("busy", 503), path="/healthz")
    due = running.schedule.read_due_times(running.pairs())
    before = running.read("dynamicscorers/cpu-scorer.yaml")
    # A single failed check is not decisive; the others wait until a full pass is over.
    often = running.settings
    running.settings = often.model_copy(update={"health_interval": 600.0})
    request_count = len(api.requests)
    running.start()
    running.until(lambda: len(api.requests) > request_count)
    assert running.schedule.read_due_times(running.pairs()) == due
    after = running.read("dynamicscorers/cpu-scorer.yaml")
    assert after["metadata"] == before["metadata"]
    assert after["status"]["healthStatus"] == "Active"
    assert after["status"]["lastSyncedConfig"] == before["status"]["lastSyncedConfig"]
    assert after["status"]["clusters"] == before["status"]["clusters"]
    old = {item["type"]: item["lastTransitionTime"] for item in before["status"]["conditions"]}
    assert {item["type"]: item["lastTransitionTime"] for item in after["status"]["conditions"]} == old
    running.settings = often
    running.restart()
    running.until(lambda: running.status("cpu-scorer")["healthStatus"] == "Inactive")


def test_objects_deleted_while_the_hub_is_down_are_removed(running: HubHarness) -> None:
    running.stop()
    running.remove("clusters/b.yaml")
    running.start()
    running.until(lambda: running.pairs() == ["a/cpu-scorer"])
    running.until(lambda: running.cluster_record("b") is None)
    running.until(lambda: not (running.out / "clusters/b").exists())
    running.stop()
    running.remove("scorers/cpu-scorer.yaml")
    running.start()
    running.until(lambda: running.pairs() == [])
    running.until(lambda: running.record("cpu-scorer") is None)
    running.until(lambda: not list((running.out / "dynamicscorers").glob("*.yaml")))


def test_foreign_redis_records_are_removed_at_the_next_resync(running: HubHarness) -> None:
    entry = running.entries()["a/cpu-scorer"]
    record, cluster = running.record("cpu-scorer"), running.cluster_record("a")
    assert record is not None
    assert cluster is not None
    running.schedule.upsert(
        [
            entry.model_copy(update={"cluster": "ghost"}),
            entry.model_copy(update={"scorer": "ghost"}),
        ]
    )
    running.registry.put_scorer(record.model_copy(update={"name": "ghost"}))
    running.registry.put_cluster(cluster.model_copy(update={"name": "ghost"}))
    running.until(lambda: running.pairs() == ["a/cpu-scorer", "b/cpu-scorer"])
    running.until(lambda: running.record("ghost") is None and running.cluster_record("ghost") is None)


@pytest.fixture
def captured_logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """Captured log lines."""
    with structlog.testing.capture_logs() as lines:
        yield lines


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A server that a test may kill; its data is lost then."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def frail(
    tmp_path: Path, own_redis: RedisServer, settings_factory: SettingsFactory, api: ScriptedServer
) -> Iterator[HubHarness]:
    """A started hub with that Redis and one cluster."""
    folder = tmp_path / "manifests"
    folder.mkdir()
    settings = settings_factory(
        role="hub", backend="dir", manifests=folder, redis_url=own_redis.url, health_interval=0.2
    )
    world = HubHarness(folder, own_redis.client(), settings)
    # Only the end of an outage may bring Redis up to date.
    world.resync = 600
    world.config()
    world.cluster("a")
    world.scorer("cpu-scorer", api)
    try:
        world.start()
        world.until(lambda: world.pairs() == ["a/cpu-scorer"])
        world.until(lambda: world.condition("cpu-scorer", "Distributed")[0] == "True")
        yield world
    finally:
        world.stop()


def test_redis_away_stops_neither_health_nor_distribution(
    captured_logs: list[MutableMapping[str, Any]], frail: HubHarness, own_redis: RedisServer, api: ScriptedServer
) -> None:
    own_redis.kill()
    frail.cluster("b")
    frail.until(lambda: frail.delivered_scorers("b") == ["cpu-scorer"])
    api.script(answer("busy", 503), path="/healthz")
    frail.until(lambda: frail.status("cpu-scorer")["healthStatus"] == "Inactive")
    frail.until(lambda: frail.delivered_scorers("a") == [])
    api.script(answer("ok"), path="/healthz")
    frail.until(lambda: frail.delivered_scorers("a") == ["cpu-scorer"])
    own_redis.restart()
    frail.until(lambda: frail.pairs() == ["a/cpu-scorer", "b/cpu-scorer"])
    frail.until(lambda: frail.record("cpu-scorer") is not None)
    frail.stop()
    reasons = [
        line["error"] for line in captured_logs if line["event"] == "unreachable, will be tried again until it is back"
    ]
    assert reasons
    assert len(reasons) == len(set(reasons)), "each reason is said once"
    assert sum(line["event"] == "reachable again" for line in captured_logs) == 1


def test_hanging_redis_delays_deliveries_by_a_single_timeout(frail: HubHarness, own_redis: RedisServer) -> None:
    # With this many clusters, two workers that waited for a timeout on each would exceed the test's patience.
    clusters = [f"new-{number}" for number in range(60)]
    patience = 2 * frail.settings.redis_socket_timeout
    os.kill(own_redis.pid, signal.SIGSTOP)
    try:
        for name in clusters:
            frail.cluster(name)
        frail.until(lambda: all(frail.delivered_scorers(name) for name in clusters), timeout=patience)
    finally:
        os.kill(own_redis.pid, signal.SIGCONT)
    frail.until(lambda: len(frail.pairs()) == 61)
