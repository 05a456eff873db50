"""The pod of a Redis without a volume on a lost node, on a real API server: no kubelet confirms its end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from dsf.errors import ObjectConflictError, ObjectNotFoundError, SettingsError
from dsf.hub.lostpod import LostPodRemover
from dsf.kube.resources import PODS, Resource
from dsf.kube.session import Session
from tests.support.controlplane import ControlPlane
from tests.support.wait import wait_for

SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
NAMESPACE, NAME = "default", "redis-0"
PATH = PODS.path(NAMESPACE, NAME)
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": NAME, "namespace": NAMESPACE},
    "spec": {
        "nodeName": "lost-node",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 2,
        "containers": [{"name": "redis", "image": "valkey"}],
    },
}


@pytest.fixture
def session(control_plane: ControlPlane) -> Iterator[Session]:
    with contextlib.closing(control_plane.session()) as session:
        # The controller manager makes it elsewhere.
        with contextlib.suppress(ObjectConflictError):
            session.create(SERVICE_ACCOUNTS.path(NAMESPACE), {"metadata": {"name": "default"}})
        yield session
        with contextlib.suppress(ObjectNotFoundError):
            session.delete(PATH, is_immediate=True)


def test_pod_of_a_lost_node_is_removed_after_its_grace_period(session: Session) -> None:
    uid = session.create(PODS.path(NAMESPACE), POD)["metadata"]["uid"]
    remover = LostPodRemover(session, f"{NAMESPACE}/{NAME}")
    assert not remover.check(), "a pod that nobody has deleted stays"
    # As the controller manager does for a node that does not answer.
    session.delete(PATH)
    assert not remover.check(), "its kubelet has the grace period to end it"
    assert session.get(PATH)["metadata"]["uid"] == uid
    wait_for(remover.check, 30, "the pod to be removed")
    with pytest.raises(ObjectNotFoundError):
        session.get(PATH)
    assert not remover.check()


@pytest.mark.parametrize("pod", ["redis-0", "a/b/c", "/redis-0"])
def test_setting_without_a_namespace_is_refused(session: Session, pod: str) -> None:
    with pytest.raises(SettingsError, match="DSF_REDIS_MOVABLE_POD"):
        LostPodRemover(session, pod)
