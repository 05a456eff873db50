"""The world of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.world import OcmFleet
from tests.support.controlplane_fixtures import programs_needed


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OcmFleet]:
    """All processes with a registered scorer and a waiting Placement. Skipped without programs, except in CI."""
    with programs_needed():
        environment = OcmFleet(tmp_path_factory.mktemp("world"))
    with environment:
        environment.measure(cluster1=80, cluster2=20)
        environment.kubectl_apply("scoring.yaml")
        environment.kubectl_apply("placement.yaml")
        yield environment
