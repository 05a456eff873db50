"""Removes what the hub made, here and on managed clusters: `dsf hub --leave`, before the chart is uninstalled.

Deleting its ManifestWorks removes the agents' ConfigMap and credentials. The process with the controller
is stopped first, or it would deliver and write again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import dsf.log
from dsf.api.types import (
    CREDENTIALS_WORK_NAME,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    MANIFESTWORK_NAME,
    OBSOLETE_FINALIZERS,
)
from dsf.errors import BackendError, ObjectNotFoundError
from dsf.kube import lists
from dsf.kube.resources import ADDON_PLACEMENT_SCORES, DEPLOYMENTS, DYNAMIC_SCORING_CONFIGS, MANIFEST_WORKS, PODS
from dsf.kube.session import Session, UnreachableError
from dsf.settings import Settings

log = dsf.log.get(__name__)

#: The Deployments of the chart that may run the controller: with all services, or apart.
_DEPLOYMENTS: Final = ("dynamic-scoring-hub", "dynamic-scoring-controller")
#: Their pods, as the chart labels them.
_PODS: Final = "app.kubernetes.io/name=dynamic-scoring-framework,app.kubernetes.io/component in (hub,controller)"
#: Selector: those of another owner with these names are not the hub's.
_OURS: Final = f"{MANAGED_BY_LABEL}={MANAGED_BY}"
#: Seconds between two checks.
_POLL: Final = 1.0


def run(settings: Settings) -> int:
    """Returns the exit code: 0 also if clusters are unreachable; their work agents follow later.

    Raises BackendError if the API server refuses or does not answer for longer than the time-out.
    """
    dsf.log.setup(settings)
    session = Session.load(settings.kubeconfig)
    try:
        unfinished_clusters = leave(session, settings.namespace)
    finally:
        session.close()
    for cluster in unfinished_clusters:
        log.warning("what was delivered goes when the cluster is back", cluster=cluster)
    return 0


def leave(session: Session, namespace: str, patience: float = 90.0) -> list[str]:
    """Stop the processes, delete what they made and wait until it is gone; returns the clusters still pending.

    `patience` are the seconds for the processes' shutdown, and for OCM's removal from the clusters; normally each takes
    a few.
    """
    if not _until(lambda: _has_ended(session, namespace), patience):
        log.warning("the controller has not ended yet", namespace=namespace)
    works: list[dict[str, Any]] = []
    deleted: set[str] = set()

    def have_looked() -> bool:
        works[:] = _works(session)
        return True

    def are_gone() -> bool:
        have_looked()
        clusters = {score["metadata"]["namespace"] for score in _scores(session)}
        removals = [partial(_remove_scores, session, cluster) for cluster in sorted(clusters)]
        removals += [
            partial(_remove_work, session, work["metadata"], deleted)
            for work in works
            if not work["metadata"].get("deletionTimestamp")
        ]
        _try_each(removals)
        return not works and not clusters

    if not _until(are_gone, patience):
        # Some are gone since then.
        _until(have_looked, 10.0)
    if not _until(lambda: _remove_obsolete_finalizers(session), patience):
        log.warning("finalizers of a DynamicScoringConfig could not be removed")
    log.info("taken back", deliveries=len(deleted))
    return sorted({work["metadata"]["namespace"] for work in works})


def _try_each(removals: Iterable[Callable[[], None]]) -> None:
    """Raise the first error at the end: one specific to one object, such as a refusing webhook, keeps no other."""
    failure: BackendError | None = None
    for remove in removals:
        try:
            remove()
        except UnreachableError:
            # The next one would fail for the same reason.
            raise
        except BackendError as error:
            if error.is_busy:
                raise
            failure = failure or error
    if failure is not None:
        raise failure


def _has_ended(session: Session, namespace: str) -> bool:
    for name in _DEPLOYMENTS:
        try:
            session.merge(DEPLOYMENTS.path(namespace, name), {"spec": {"replicas": 0}})
        except ObjectNotFoundError:
            log.debug("there is no such deployment", name=name, namespace=namespace)
    return not lists.list_objects(session, PODS, namespace, labels=_PODS)


def _remove_obsolete_finalizers(session: Session) -> bool:
    """Remove finalizers that nothing else removes, so that users can delete the configurations later."""
    for config in lists.list_objects(session, DYNAMIC_SCORING_CONFIGS):
        metadata = config["metadata"]
        before = metadata.get("finalizers") or []
        remaining = [finalizer for finalizer in before if finalizer not in OBSOLETE_FINALIZERS]
        if remaining == before:
            continue
        body = {"metadata": {"finalizers": remaining, "resourceVersion": metadata["resourceVersion"]}}
        try:
            session.merge(DYNAMIC_SCORING_CONFIGS.path(metadata["namespace"], metadata["name"]), body)
        except ObjectNotFoundError:
            log.info("gone already", namespace=metadata["namespace"], name=metadata["name"])
    return True


def _remove_scores(session: Session, cluster: str) -> None:
    session.request("DELETE", ADDON_PLACEMENT_SCORES.path(cluster), query={"labelSelector": _OURS})


def _remove_work(session: Session, metadata: dict[str, Any], deleted: set[str]) -> None:
    try:
        session.delete(MANIFEST_WORKS.path(metadata["namespace"], metadata["name"]), uid=metadata["uid"])
    except ObjectNotFoundError:
        log.info("gone already", cluster=metadata["namespace"], name=metadata["name"])
    deleted.add(metadata["uid"])


def _scores(session: Session) -> list[dict[str, Any]]:
    return lists.list_objects(session, ADDON_PLACEMENT_SCORES, labels=_OURS)


def _works(session: Session) -> list[dict[str, Any]]:
    # Only metadata: thousands of summaries need not be held.
    return [
        {"metadata": work["metadata"]}
        for name in (MANIFESTWORK_NAME, CREDENTIALS_WORK_NAME)
        for work in lists.list_objects(session, MANIFEST_WORKS, labels=_OURS, name=name)
    ]


def _until(condition: Callable[[], bool], patience: float) -> bool:
    """True if it became true. Failed requests are retried meanwhile; the last one's error is raised."""
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
