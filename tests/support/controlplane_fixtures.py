"""Fixtures of tests against a real API server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from dsf.kube.session import Session
from tests.support.controlplane import ControlPlane, ControlPlaneMissingError

#: The API server of this process, while it runs.
_shared: list[ControlPlane] = []


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real API server, one per test process. Tests that kill or stall it start their own (`own_control_plane`)."""
    with found() as server:
        _shared.append(server)
        yield server


def pytest_runtest_setup(item: pytest.Item) -> None:
    """End it with its last test: where files are shared out in the order of their names, tests/unit comes last."""
    if _shared and hasattr(item.config, "workerinput") and item.nodeid.startswith("tests/unit/"):
        _shared.pop().stop()


@pytest.fixture
def session(control_plane: ControlPlane) -> Iterator[Session]:
    """A session as admin."""
    with contextlib.closing(control_plane.session()) as session:
        yield session


@pytest.fixture
def own_control_plane() -> Iterator[ControlPlane]:
    """A real API server of the test's own, to kill and stall; without CRDs, to start faster."""
    with found(crds=False) as server:
        yield server


def found(*, crds: bool = True) -> ControlPlane:
    """A control plane, not started. Without the programs the test is skipped; in CI that is a failure."""
    with programs_needed():
        return ControlPlane(crds=crds)


@contextlib.contextmanager
def programs_needed() -> Iterator[None]:
    """When a program is found to be missing, the test is skipped; in CI that is a failure."""
    try:
        yield
    except ControlPlaneMissingError as error:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
