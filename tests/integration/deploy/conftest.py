"""A control plane of this folder's own: the chart's objects have fixed names and are for the whole cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from dsf.kube.session import Session
from tests.integration.deploy.hubcluster import HubCluster
from tests.support.controlplane import ControlPlane, ControlPlaneMissingError


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A real API server with the CRDs of OCM. Without the programs the test is skipped; in CI that is a failure."""
    try:
        server = ControlPlane()
    except ControlPlaneMissingError as error:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture(scope="module")
def hub(plane: ControlPlane) -> HubCluster:
    """The same as a hub to install on."""
    return HubCluster(plane)


@pytest.fixture
def session(plane: ControlPlane) -> Iterator[Session]:
    """A session as admin."""
    with contextlib.closing(plane.session()) as session:
        yield session
