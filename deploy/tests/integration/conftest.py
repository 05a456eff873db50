"""A control plane of this folder's own: the chart's objects have fixed names and are for the whole cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from deploy.tests.integration.hubcluster import CLUSTER_SETS, NAMESPACES, HubCluster
from dsf.kube.session import Session
from tests.support import chart
from tests.support.child import Child
from tests.support.controlplane import ControlPlane, find
from tests.support.controlplane_crds import give_crds_to_helm
from tests.support.controlplane_fixtures import control_plane_or_skip, programs_needed
from tests.support.redisserver import free_port

OCM_NAMESPACE = "open-cluster-management-hub"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A real API server with the CRDs of OCM, and ours as those of the release. Without the programs the test is
    skipped; in CI that is a failure.
    """
    with control_plane_or_skip() as server:
        with contextlib.closing(server.session()) as session:
            give_crds_to_helm(session, chart.RELEASE, chart.NAMESPACE)
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


@pytest.fixture(scope="module")
def ocm(plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane with OCM's placement controller and addon manager running on it."""
    with programs_needed():
        programs = find("addon", "placement")
    with contextlib.ExitStack() as stack:
        admin = stack.enter_context(contextlib.closing(plane.session()))
        admin.create(NAMESPACES.path(), {"metadata": {"name": OCM_NAMESPACE}})
        # The registration controller makes it elsewhere.
        selector = {"selectorType": "LabelSelector", "labelSelector": {}}
        cluster_set = {
            "apiVersion": CLUSTER_SETS.api_version,
            "kind": CLUSTER_SETS.kind,
            "metadata": {"name": "global"},
        }
        admin.create(CLUSTER_SETS.path(), cluster_set | {"spec": {"clusterSelector": selector}})
        for program, command in (("placement", "controller"), ("addon", "manager")):
            arguments = [
                *(str(programs / program), command, f"--kubeconfig={plane.kubeconfig}", "--disable-leader-election"),
                *(f"--namespace={OCM_NAMESPACE}", f"--listen=127.0.0.1:{free_port()}"),
            ]
            child = Child(arguments, plane.dir / f"{program}.log", {"POD_NAMESPACE": OCM_NAMESPACE})
            stack.callback(child.kill)
        yield plane
