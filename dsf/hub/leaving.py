"""Takes back what the hub controller delivered to managed clusters: `dsf hub --leave`, before the chart is uninstalled.

With its ManifestWorks go the agents' ConfigMap and their credentials. The controller ends first, or it would deliver
them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import dsf.log
from dsf.api.types import CREDENTIALS_WORK_NAME, MANIFESTWORK_NAME
from dsf.errors import ObjectNotFoundError
from dsf.kube.resources import DEPLOYMENTS, MANIFEST_WORKS, PODS
from dsf.kube.session import Session
from dsf.settings import Settings

log = dsf.log.get(__name__)

_DEPLOYMENT: Final = "dynamic-scoring-hub"
#: The controller's pods, as the chart labels them.
_PODS: Final = "app.kubernetes.io/name=dynamic-scoring-framework,app.kubernetes.io/component=hub"
_DELIVERED: Final = (MANIFESTWORK_NAME, CREDENTIALS_WORK_NAME)
#: Seconds for the controller's end, and for OCM to take things off the clusters; each takes a few where all is well.
_PATIENCE: Final = 90.0
_POLL: Final = 1.0


def run(settings: Settings) -> int:
    """Returns the exit code: 0 also when clusters are away, whose work agents do their part when they are back.

    Raises BackendError when the API server refuses, or does not answer.
    """
    dsf.log.setup(settings)
    session = Session.load(settings.kubeconfig)
    try:
        left = leave(session, settings.namespace)
    finally:
        session.close()
    for cluster in left:
        log.warning("what was delivered goes when the cluster is back", cluster=cluster)
    return 0


def leave(session: Session, namespace: str, patience: float = _PATIENCE) -> list[str]:
    """End the controller, delete what it delivered and wait until it is gone; the clusters where it is not yet."""
    try:
        session.merge(DEPLOYMENTS.path(namespace, _DEPLOYMENT), {"spec": {"replicas": 0}})
    except ObjectNotFoundError:
        log.info("there is no hub controller", namespace=namespace)
    else:
        if not _until(lambda: not _items(session, PODS.path(namespace), _PODS), patience):
            log.warning("the hub controller has not ended yet", namespace=namespace)
    asked: set[str] = set()

    def are_gone() -> bool:
        works = _works(session)
        for work in works:
            metadata = work["metadata"]
            if not metadata.get("deletionTimestamp") and metadata["uid"] not in asked:
                asked.add(metadata["uid"])
                _delete(session, metadata)
        return not works

    _until(are_gone, patience)
    log.info("taken back", objects=len(asked))
    return sorted({work["metadata"]["namespace"] for work in _works(session)})


def _delete(session: Session, metadata: dict[str, Any]) -> None:
    try:
        session.delete(MANIFEST_WORKS.path(metadata["namespace"], metadata["name"]), uid=metadata["uid"])
    except ObjectNotFoundError:
        log.info("gone already", cluster=metadata["namespace"], name=metadata["name"])


def _works(session: Session) -> list[dict[str, Any]]:
    found = _items(session, MANIFEST_WORKS.path())
    return [work for work in found if work["metadata"]["name"] in _DELIVERED]


def _items(session: Session, path: str, selector: str = "") -> list[dict[str, Any]]:
    query = {"labelSelector": selector} if selector else None
    items: list[dict[str, Any]] = session.request("GET", path, query=query).get("items") or []
    return items


def _until(condition: Callable[[], bool], patience: float) -> bool:
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL)
    return True
