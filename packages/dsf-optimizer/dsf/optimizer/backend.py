"""Reads and writes the optimiser's objects on the hub's API server."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from dsf.errors import ObjectNotFoundError
from dsf.kube import lists
from dsf.kube.lists import request_with_retry
from dsf.kube.resources import Resource
from dsf.kube.session import Session

Manifest = dict[str, Any]

FIELD_MANAGER: Final = "dynamic-scoring-optimizer"


class ManifestClient:
    """Reads and writes objects on the hub as manifests. Thread-safe.

    Every method raises BackendError if the hub is unavailable.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def read_clock(self) -> datetime:
        """Return the current time by the clock of the hub."""
        return self._session.read_clock()

    def get(self, resource: Resource, namespace: str, name: str) -> Manifest | None:
        """Return an object, or None."""
        try:
            return self._request("GET", resource.path(namespace, name))
        except ObjectNotFoundError:
            return None

    def list_objects(
        self, resource: Resource, namespace: str = "", *, labels: str = "", name: str = ""
    ) -> list[Manifest]:
        """Return all objects of a kind in one namespace or all, filtered by a label selector and by name.

        The objects are read in pages. The list is empty for a kind that the hub does not have.
        """
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        # Objects in a list lack apiVersion and kind.
        return [
            kind | item for item in lists.list_objects(self._session, resource, namespace, labels=labels, name=name)
        ]

    def fetch_objects(self, resource: Resource, namespace: str, names: Iterable[str]) -> dict[str, Manifest]:
        """Return the named objects that exist."""
        wanted_names = set(names)
        # Read a few objects one by one, because a ManifestWorkReplicaSet is large; list all objects to get many.
        if len(wanted_names) <= 8:
            manifests = {name: self.get(resource, namespace, name) for name in wanted_names}
            return {name: manifest for name, manifest in manifests.items() if manifest is not None}
        objects = self.list_objects(resource, namespace)
        return {
            manifest["metadata"]["name"]: manifest
            for manifest in objects
            if manifest["metadata"]["name"] in wanted_names
        }

    def apply(self, resource: Resource, manifest: Manifest, *, force: bool = True, dry_run: bool = False) -> Manifest:
        """Apply the optimiser's fields by server-side apply, and return the object.

        Owned fields that are missing in the manifest are removed. Raises ObjectConflictError for a `metadata.uid` of
        another object, and without `force` for fields that others own.
        """
        metadata = manifest["metadata"]
        query = {"fieldManager": FIELD_MANAGER, "force": str(force).lower()} | ({"dryRun": "All"} if dry_run else {})
        return self._request(
            "PATCH",
            resource.path(metadata["namespace"], metadata["name"]),
            query=query,
            body=manifest,
            content_type="application/apply-patch+yaml",
        )

    def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str | None = None, dry_run: bool = False
    ) -> None:
        """Delete an object; a missing object is not an error."""
        # Request a dry run in the body. With a body, the API server ignores the query, and would delete the object.
        options = {"kind": "DeleteOptions", "apiVersion": "v1"}
        body = options | ({"preconditions": {"uid": uid}} if uid else {}) | ({"dryRun": ["All"]} if dry_run else {})
        try:
            self._request("DELETE", resource.path(namespace, name), body=body)
        except ObjectNotFoundError:
            return

    def check(self) -> None:
        """Raise BackendError if the hub does not respond."""
        self._session.get("/version")

    def close(self) -> None:
        """Close the connections to the API server."""
        self._session.close()

    def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        return request_with_retry(self._session, method, path, **options)
