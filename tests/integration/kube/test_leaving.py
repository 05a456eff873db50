"""Before an uninstallation: the hub's deliveries go, and it does not make them again."""

from __future__ import annotations

from collections.abc import Callable

from dsf.api.types import CREDENTIALS_WORK_NAME, MANIFESTWORK_NAME
from dsf.hub import leaving
from dsf.kube.resources import DEPLOYMENTS, MANIFEST_WORKS
from dsf.kube.session import Session
from tests.support.controlplane import ControlPlane

CLEANUP = "cluster.open-cluster-management.io/manifest-work-cleanup"
OTHERS = "addon-dynamic-scoring-framework-deploy-0"


def _work(session: Session, cluster: str, name: str, finalizers: tuple[str, ...] = ()) -> None:
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "b"}}
    body = {
        "apiVersion": MANIFEST_WORKS.api_version,
        "kind": MANIFEST_WORKS.kind,
        "metadata": {"name": name, "namespace": cluster, "finalizers": list(finalizers)},
        "spec": {"workload": {"manifests": [manifest]}},
    }
    session.create(MANIFEST_WORKS.path(cluster), body)


def _names(session: Session, cluster: str) -> list[str]:
    return sorted(work["metadata"]["name"] for work in session.get(MANIFEST_WORKS.path(cluster))["items"])


def _deployment(session: Session, namespace: str) -> None:
    labels = {"app": "hub"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "hub", "image": "hub"}]}}
    body = {
        "apiVersion": DEPLOYMENTS.api_version,
        "kind": DEPLOYMENTS.kind,
        "metadata": {"name": "dynamic-scoring-hub", "namespace": namespace},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": pod},
    }
    session.create(DEPLOYMENTS.path(namespace), body)


def test_what_was_delivered_goes_and_nothing_else(
    session: Session, control_plane: ControlPlane, settings_factory: Callable[..., object]
) -> None:
    hub, near, away = (control_plane.namespace(name) for name in ("hub", "near", "away"))
    _deployment(session, hub)
    for name in (MANIFESTWORK_NAME, CREDENTIALS_WORK_NAME, OTHERS):
        _work(session, near, name)
    # Its work agent takes the finalizer off when it is back.
    _work(session, away, CREDENTIALS_WORK_NAME, (CLEANUP,))
    try:
        left = leaving.leave(session, hub, patience=3)
        assert away in left
        assert near not in left
        assert _names(session, near) == [OTHERS]
        work = session.get(MANIFEST_WORKS.path(away, CREDENTIALS_WORK_NAME))
        assert work["metadata"]["deletionTimestamp"]
        assert session.get(DEPLOYMENTS.path(hub, "dynamic-scoring-hub"))["spec"]["replicas"] == 0
    finally:
        session.merge(MANIFEST_WORKS.path(away, CREDENTIALS_WORK_NAME), {"metadata": {"finalizers": None}})
    assert away not in leaving.leave(session, control_plane.namespace("nobody"), patience=30)
