"""`dsf hub --leave`: removes all objects that the hub created, on the hub and on managed clusters.

Users run it before `helm uninstall`. The deletion of the ManifestWorks removes the ConfigMaps and credentials of
agents. The process with the controller is stopped first, because the controller would create the objects again.
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

#: Deployments in the chart that may run the controller: with all services, or separately.
_CONTROLLER_DEPLOYMENTS: Final = ("dynamic-scoring-hub", "dynamic-scoring-controller")
#: Label selector for the pods of these Deployments.
_POD_SELECTOR: Final = (
    "app.kubernetes.io/name=dynamic-scoring-framework,app.kubernetes.io/component in (hub,controller)"
)
#: Label selector for objects of the hub, because other owners may use the same names.
_HUB_OBJECT_SELECTOR: Final = f"{MANAGED_BY_LABEL}={MANAGED_BY}"
#: Seconds between two checks.
_POLL_SECONDS: Final = 1.0


def run(settings: Settings) -> int:
    """Remove the objects; return the exit code. It is 0 even if clusters are unreachable, because OCM follows later.

    Raises BackendError if the API server rejects a request, or does not respond for longer than the time-out.
    """
    dsf.log.setup(settings)
    session = Session.load(settings.kubeconfig)
    try:
        unfinished_clusters = remove_hub_objects(session, settings.namespace)
    finally:
        session.close()
    for cluster in unfinished_clusters:
        log.warning("the cluster is unreachable: its agent's objects are removed when it is back", cluster=cluster)
    return 0


def remove_hub_objects(session: Session, namespace: str, timeout_seconds: float = 90.0) -> list[str]:
    """Stop the processes, delete their objects and wait for the deletions; return the clusters that are still pending.

    `timeout_seconds` is the maximum time for each of three steps: the shutdown of the processes, the removal from the
    clusters by OCM, and the removal of obsolete finalizers. Normally each takes a few seconds. A request that is
    running when the time has passed may extend it.
    """
    if not _wait_until(lambda: _stop_controller(session, namespace), timeout_seconds):
        log.warning("the controller has not ended yet", namespace=namespace)
    works: list[dict[str, Any]] = []
    # uids of the deleted ManifestWorks.
    deleted_work_uids: set[str] = set()

    def refresh_works() -> bool:
        works[:] = _list_works(session)
        return True

    def delete_objects() -> bool:
        """Request the deletion of all objects; return True if none exists any more."""
        refresh_works()
        clusters = {score["metadata"]["namespace"] for score in _list_scores(session)}
        removals = [partial(_remove_scores, session, cluster) for cluster in sorted(clusters)]
        removals += [
            partial(_remove_work, session, work["metadata"], deleted_work_uids)
            for work in works
            if not work["metadata"].get("deletionTimestamp")
        ]
        _run_all(removals)
        return not works and not clusters

    if not _wait_until(delete_objects, timeout_seconds):
        # Read the ManifestWorks again, because some may have been removed since the last attempt. Within ten seconds,
        # failed reads are retried.
        _wait_until(refresh_works, 10.0)
    if not _wait_until(lambda: _remove_obsolete_finalizers(session), timeout_seconds):
        log.warning("finalizers of a DynamicScoringConfig could not be removed")
    log.info("the hub's objects are removed", deliveries=len(deleted_work_uids))
    return sorted({work["metadata"]["namespace"] for work in works})


def _run_all(removals: Iterable[Callable[[], None]]) -> None:
    """Run all removals, then raise the first error, so that an error about one object does not prevent the others.

    If the API server is unreachable or busy, raise immediately.
    """
    failure: BackendError | None = None
    for remove in removals:
        try:
            remove()
        except UnreachableError:
            # The next removal would fail for the same reason.
            raise
        except BackendError as error:
            # A busy API server must not get further requests.
            if error.is_busy:
                raise
            failure = failure or error
    if failure is not None:
        raise failure


def _stop_controller(session: Session, namespace: str) -> bool:
    """Scale the Deployments of the controller to zero; return True if none of their pods exists any more."""
    for name in _CONTROLLER_DEPLOYMENTS:
        try:
            session.merge(DEPLOYMENTS.path(namespace, name), {"spec": {"replicas": 0}})
        except ObjectNotFoundError:
            log.debug("there is no such deployment", name=name, namespace=namespace)
    return not lists.list_objects(session, PODS, namespace, labels=_POD_SELECTOR)


def _remove_obsolete_finalizers(session: Session) -> bool:
    """Remove finalizers that no other program removes, so that users can delete the configurations later."""
    for config in lists.list_objects(session, DYNAMIC_SCORING_CONFIGS):
        metadata = config["metadata"]
        finalizers = metadata.get("finalizers") or []
        remaining_finalizers = [finalizer for finalizer in finalizers if finalizer not in OBSOLETE_FINALIZERS]
        if remaining_finalizers == finalizers:
            continue
        body = {"metadata": {"finalizers": remaining_finalizers, "resourceVersion": metadata["resourceVersion"]}}
        try:
            session.merge(DYNAMIC_SCORING_CONFIGS.path(metadata["namespace"], metadata["name"]), body)
        except ObjectNotFoundError:
            log.info("gone already", namespace=metadata["namespace"], name=metadata["name"])
    return True


def _remove_scores(session: Session, cluster: str) -> None:
    session.request("DELETE", ADDON_PLACEMENT_SCORES.path(cluster), query={"labelSelector": _HUB_OBJECT_SELECTOR})


def _remove_work(session: Session, metadata: dict[str, Any], deleted_work_uids: set[str]) -> None:
    try:
        session.delete(MANIFEST_WORKS.path(metadata["namespace"], metadata["name"]), uid=metadata["uid"])
    except ObjectNotFoundError:
        log.info("gone already", cluster=metadata["namespace"], name=metadata["name"])
    deleted_work_uids.add(metadata["uid"])


def _list_scores(session: Session) -> list[dict[str, Any]]:
    return lists.list_objects(session, ADDON_PLACEMENT_SCORES, labels=_HUB_OBJECT_SELECTOR)


def _list_works(session: Session) -> list[dict[str, Any]]:
    # Keep only metadata, because thousands of summaries need much memory.
    return [
        {"metadata": work["metadata"]}
        for name in (MANIFESTWORK_NAME, CREDENTIALS_WORK_NAME)
        for work in lists.list_objects(session, MANIFEST_WORKS, labels=_HUB_OBJECT_SELECTOR, name=name)
    ]


def _wait_until(condition: Callable[[], bool], timeout_seconds: float) -> bool:
    """Poll until `condition` is true. Return False if it is still false after `timeout_seconds`.

    `condition` is called at least once. A BackendError is logged and the call is repeated. If the last call before the
    end of the time raised, its error is raised.
    """
    deadline = time.monotonic() + timeout_seconds
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
        time.sleep(_POLL_SECONDS)
