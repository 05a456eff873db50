"""Fixtures of tests against a real API server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from dsf.kube.session import Session
from tests.support.controlplane import ControlPlane, ControlPlaneMissingError
from tests.support.distribution import is_unit, uses_api_server

#: The server that tests share, once it exists.
_shared: list[ControlPlane] = []
#: Marks of the current test.
_marks: set[str] = set()


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real API server, one per run. Its tests may kill and stall it, so a single test process runs all of them.

    The server stops before the unit tests, which come last and do not need it.
    """
    with control_plane_or_skip() as server:
        _shared.append(server)
        yield server
    _shared.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the shared server, or its program that the previous test killed, again."""
    _marks.clear()
    _marks.update(mark.name for mark in item.iter_markers())
    for server in _shared:
        if "control_plane" in getattr(item, "fixturenames", ()):
            server.ensure()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the shared server before the unit tests."""
    file = nextitem.nodeid.partition("::")[0] if nextitem is not None else ""
    for server in _shared:
        if is_unit(file) and server.is_running and not uses_api_server(file):
            server.stop()


@pytest.fixture
def session(control_plane: ControlPlane) -> Iterator[Session]:
    """A session as admin."""
    with contextlib.closing(control_plane.session()) as session:
        yield session


def control_plane_or_skip(*, crds: bool = True) -> ControlPlane:
    """Return a control plane, not started. Without the programs the test is skipped; in CI it fails."""
    with programs_needed():
        return ControlPlane(crds=crds)


@contextlib.contextmanager
def programs_needed() -> Iterator[None]:
    """Skip the test if a program is missing; in CI it fails.

    Raises RuntimeError in a test without the mark `kube` or `whole`, because `make test` would run it without the
    programs.
    """
    if not _marks & {"kube", "whole"}:
        raise RuntimeError("this test needs a real API server: add its file to MARKS_BY_PATH of tests/support/kinds.py")
    try:
        yield
    except ControlPlaneMissingError as error:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
