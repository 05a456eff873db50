"""Fixtures of the tests in this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from dsf.kube.session import Session
from dsf.settings import Settings
from tests.integration.hub.world import scoring_api
from tests.integration.kube.hub import Hub
from tests.integration.kube.hubworld import HubWorld
from tests.support.controlplane import ControlPlane
from tests.support.httpserver import ScriptedServer


@pytest.fixture
def session(control_plane: ControlPlane) -> Iterator[Session]:
    """A session as admin."""
    with contextlib.closing(control_plane.session()) as session:
        yield session


@pytest.fixture
def start_hub(control_plane: ControlPlane, settings_factory: Callable[..., Settings]) -> Iterator[Callable[..., Hub]]:
    with contextlib.ExitStack() as stack:

        def start(**values: object) -> Hub:
            settings = settings_factory(namespace=control_plane.namespace("hub"), backend="kube", **values)
            hub = Hub(control_plane, settings)
            stack.callback(hub.backend.stop)
            hub.backend.start(hub.on_change)
            return hub

        yield start


@pytest.fixture
def hub(start_hub: Callable[..., Hub]) -> Hub:
    return start_hub()


@pytest.fixture
def scorer_api() -> Iterator[ScriptedServer]:
    """A healthy scoring API: score `cpu`, every 30 s."""
    with scoring_api() as server:
        yield server


@pytest.fixture
def world(
    control_plane: ControlPlane,
    redis_client: redis.Redis,
    redis_url: str,
    tmp_path: Path,
    settings_factory: Callable[..., Settings],
) -> Iterator[HubWorld]:
    """An API server without clusters or scorers, an empty Redis, and no process yet."""
    with contextlib.closing(HubWorld(control_plane, redis_client, redis_url, tmp_path)) as made:
        # A hub works on whatever is there, also on what tests without a hub left.
        made.clean()
        yield made
        made.clean()
