"""AddOnPlacementScores on an API server, for the results worker."""

from __future__ import annotations

import dsf.log
from dsf.backends.kube_kinds import FIELD_MANAGER
from dsf.backends.protocol import Manifest
from dsf.errors import ObjectNotFoundError
from dsf.kube.resources import ADDON_PLACEMENT_SCORES, Resource
from dsf.kube.session import Session

log = dsf.log.get(__name__)


class KubeScoreBackend:
    """See `dsf.backends.protocol.ScoreBackend`. One request for an existing score, three for a new one."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def apply_score(self, manifest: Manifest, status: Manifest) -> None:
        """Write the status; create the object if it is missing or belongs to a deleted cluster."""
        metadata = manifest["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        try:
            answer = write_status(self._session, ADDON_PLACEMENT_SCORES, namespace, name, status)
        except ObjectNotFoundError:
            # The status is written separately: the API server drops it from a new object.
            self._apply(manifest)
            write_status(self._session, ADDON_PLACEMENT_SCORES, namespace, name, status)
        else:
            if not _has(answer["metadata"], metadata):
                # A recreated ManagedCluster has another uid; or a label was removed.
                self._apply(manifest)

    def delete_score(self, namespace: str, name: str) -> None:
        """Remove the object if it exists."""
        try:
            self._session.delete(ADDON_PLACEMENT_SCORES.path(namespace, name))
        except ObjectNotFoundError:
            log.debug("score already gone", namespace=namespace, name=name)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def _apply(self, manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        path = ADDON_PLACEMENT_SCORES.path(metadata["namespace"], metadata["name"])
        self._session.apply(path, manifest, field_manager=FIELD_MANAGER)


def write_status(session: Session, resource: Resource, namespace: str, name: str, status: Manifest) -> Manifest:
    """Replace the whole status; returns the object. Nothing is written where it is the same already."""
    path = resource.path(namespace, name, "status")
    return session.replace_field(path, "/status", status, field_manager=FIELD_MANAGER)


def _has(actual: Manifest, wanted: Manifest) -> bool:
    """Whether a score has its labels and owner."""
    labels = actual.get("labels") or {}
    owners = {owner.get("uid") for owner in actual.get("ownerReferences") or ()}
    return all(labels.get(name) == value for name, value in wanted.get("labels", {}).items()) and all(
        owner.get("uid") in owners for owner in wanted.get("ownerReferences", ())
    )
