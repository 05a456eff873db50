"""Fixtures: a hub on a folder of manifests, started or not, and a scoring API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.integration.hub.world import HubHarness, scoring_api
from tests.support.fixtures import SettingsFactory
from tests.support.httpserver import ScriptedServer


@pytest.fixture
def world(
    tmp_path: Path,
    redis_client: redis.Redis,
    redis_url: str,
    settings_factory: SettingsFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[HubHarness]:
    """Yield a hub on an empty folder, not started yet. It is stopped after the test."""
    # A shorter check timeout could end before the server answers and count as one more failed check.
    monkeypatch.setattr("dsf.hub.health.CHECK_TIMEOUT", 30.0)
    folder = tmp_path / "manifests"
    folder.mkdir()
    settings = settings_factory(
        role="hub",
        backend="dir",
        manifests=folder,
        redis_url=redis_url,
        health_interval=0.2,
        # These tests begin after the grace period; tests/unit/hub/test_departures.py covers the grace period.
        departure_grace=0,
    )
    harness = HubHarness(folder, redis_client, settings)
    yield harness
    harness.stop()


@pytest.fixture
def api() -> Iterator[ScriptedServer]:
    """Yield a healthy scoring API with the score `cpu` and an interval of 30 s."""
    with scoring_api() as server:
        yield server


@pytest.fixture
def running(world: HubHarness, api: ScriptedServer) -> HubHarness:
    """Return a started hub with a DynamicScoringConfig, clusters a and b, and `cpu-scorer` scheduled on both."""
    world.config()
    world.cluster("a")
    world.cluster("b")
    world.scorer("cpu-scorer", api)
    world.start()
    world.until(lambda: world.pairs() == ["a/cpu-scorer", "b/cpu-scorer"])
    world.until(lambda: world.status("cpu-scorer").get("clusters", {}).get("desired") == 2)
    return world
