"""Fixtures of the tests in this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from dsf.settings import Settings
from tests.integration.backends.conftest import hub, start_hub
from tests.integration.hub.kube.hubworld import HubWorld
from tests.support.controlplane import ControlPlane

__all__ = ["hub", "start_hub"]


@pytest.fixture
def world(
    control_plane: ControlPlane,
    redis_client: redis.Redis,
    redis_url: str,
    tmp_path: Path,
    settings_factory: Callable[..., Settings],
) -> Iterator[HubWorld]:
    """An API server without clusters or scorers, an empty Redis, and no process yet."""
    with contextlib.closing(HubWorld(control_plane, redis_client, redis_url, tmp_path)) as hub_world:
        # A hub processes all objects, including those that tests without a hub left.
        hub_world.clean()
        yield hub_world
        hub_world.clean()
