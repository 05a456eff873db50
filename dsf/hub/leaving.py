"""Removes the hub's deliveries from managed clusters: `dsf hub --leave`, before the chart is uninstalled.

Deleting its ManifestWorks removes the agents' ConfigMap and credentials. The controller is stopped first, or it would
deliver them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import dsf.log
from dsf.api.types import CREDENTIALS_WORK_NAME, MANAGED_BY, MANAGED_BY_LABEL, MANIFESTWORK_NAME
from dsf.errors import BackendError, ObjectNotFoundError
from dsf.kube import lists
from dsf.kube.resources import DEPLOYMENTS, MANIFEST_WORKS, PODS
from dsf.kube.session import Session, UnreachableError
from dsf.settings import Settings

log = dsf.log.get(__name__)

_DEPLOYMENT: Final = "dynamic-scoring-hub"
#: The controller's pods, as the chart labels them.
_PODS: Final = "app.kubernetes.io/name=dynamic-scoring-framework,app.kubernetes.io/component=hub"
#: Selector: those of another owner with these names are not the hub's.
_OURS: Final = f"{MANAGED_BY_LABEL}={MANAGED_BY}"
#: Seconds for the controller's shutdown, and for OCM's removal from the clusters; normally each takes a few.
_POLL: Final = 1.0


def run(settings: Settings) -> int:
    """Returns the exit code: 0 also if clusters are unreachable; their work agents follow later.

    Raises BackendError if the API server refuses or does not answer for longer than the time-out.
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


def leave(session: Session, namespace: str, patience: float = 90.0) -> list[str]:
    """Stop the controller, delete its deliveries and wait until they are gone; returns the clusters still pending."""
    if not _until(lambda: _has_ended(session, namespace), patience):
        log.warning("the hub controller has not ended yet", namespace=namespace)
    works: list[dict[str, Any]] = []
    asked: set[str] = set()

    def have_looked() -> bool:
        works[:] = _works(session)
        return True

    def are_gone() -> bool:
        have_looked()
        failure: BackendError | None = None
        for work in works:
            metadata = work["metadata"]
            if metadata.get("deletionTimestamp") or metadata["uid"] in asked:
                continue
            try:
                _delete(session, metadata)
                asked.add(metadata["uid"])
            except UnreachableError:
                # It would fail for the next one too.
                raise
            except BackendError as error:
                if error.is_busy:
                    raise
                # Specific to one object, such as a refusing webhook: the others must still be deleted.
                failure = failure or error
        if failure is not None:
            raise failure
        return not works

    if not _until(are_gone, patience):
        # Some are gone since then.
        _until(have_looked, 10.0)
    log.info("taken back", objects=len(asked))
    return sorted({work["metadata"]["namespace"] for work in works})


def _has_ended(session: Session, namespace: str) -> bool:
    try:
        session.merge(DEPLOYMENTS.path(namespace, _DEPLOYMENT), {"spec": {"replicas": 0}})
    except ObjectNotFoundError:
        log.info("there is no hub controller", namespace=namespace)
        return True
    return not lists.objects(session, PODS, namespace, labels=_PODS)


def _delete(session: Session, metadata: dict[str, Any]) -> None:
    try:
        session.delete(MANIFEST_WORKS.path(metadata["namespace"], metadata["name"]), uid=metadata["uid"])
    except ObjectNotFoundError:
        log.info("gone already", cluster=metadata["namespace"], name=metadata["name"])


def _works(session: Session) -> list[dict[str, Any]]:
    # Only metadata: thousands of summaries need not be held.
    return [
        {"metadata": work["metadata"]}
        for name in (MANIFESTWORK_NAME, CREDENTIALS_WORK_NAME)
        for work in lists.objects(session, MANIFEST_WORKS, labels=_OURS, name=name)
    ]


def _until(condition: Callable[[], bool], patience: float) -> bool:
    """Whether it became true. Failed requests are retried meanwhile; the last one's error is raised."""
    deadline = time.monotonic() + patience
    while True:
        problem: BackendError | None = None
        try:
            if condition():
                return True
        except BackendError as error:
            log.warning("trying again", problem=str(error))
            problem = error
        if time.monotonic() >= deadline:
            if problem is not None:
                raise problem
            return False
        time.sleep(_POLL)
