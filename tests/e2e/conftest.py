"""The world of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.world import World
from tests.support.controlplane_fixtures import programs_needed


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Everything runs, the scorer is registered, and a Placement waits. Skipped without programs, except in CI."""
    with programs_needed():
        environment = World(tmp_path_factory.mktemp("world"))
    with environment:
        environment.measure(cluster1=80, cluster2=20)
        environment.kubectl_apply("scoring.yaml")
        environment.kubectl_apply("placement.yaml")
        yield environment
