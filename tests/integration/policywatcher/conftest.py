"""Fixtures of the tests in this folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.policywatcher.managedcluster import ManagedCluster
from tests.support.controlplane import ControlPlane


@pytest.fixture
def cluster(control_plane: ControlPlane, tmp_path: Path) -> Iterator[ManagedCluster]:
    """A managed cluster without policies and without a claim."""
    with contextlib.closing(control_plane.session()) as session:
        yield ManagedCluster(control_plane, session, tmp_path)
