"""Where the optimiser's objects are: the hub's API server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from dsf.errors import ObjectNotFoundError
from dsf.kube import lists
from dsf.kube.patience import request_with_retry
from dsf.kube.resources import Resource
from dsf.kube.session import Session

Manifest = dict[str, Any]

FIELD_MANAGER: Final = "dynamic-scoring-optimizer"
#: Up to this many objects are read one by one: a ManifestWorkReplicaSet carries whole workloads.
_ONE_BY_ONE: Final = 8


class KubeBackend:
    """Manifests in, manifests out. Thread-safe. Every method raises BackendError when the hub cannot be used."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get(self, resource: Resource, namespace: str, name: str) -> Manifest | None:
        """One object, or None."""
        try:
            return self._request("GET", resource.path(namespace, name))
        except ObjectNotFoundError:
            return None

    def objects(self, resource: Resource, namespace: str = "", *, labels: str = "", name: str = "") -> list[Manifest]:
        """All objects of a kind, of one namespace or all, filtered by a label selector and by name.

        Read in pages. A kind that the hub does not have has no objects.
        """
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        # An item of a list has neither of the two.
        return [kind | one for one in lists.objects(self._session, resource, namespace, labels=labels, name=name)]

    def fetch(self, resource: Resource, namespace: str, names: Iterable[str]) -> dict[str, Manifest]:
        """Those of the named objects that there are."""
        wanted = set(names)
        if len(wanted) <= _ONE_BY_ONE:
            found = {name: self.get(resource, namespace, name) for name in wanted}
            return {name: one for name, one in found.items() if one is not None}
        objects = self.objects(resource, namespace)
        return {one["metadata"]["name"]: one for one in objects if one["metadata"]["name"] in wanted}

    def apply(self, resource: Resource, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        """Server-side apply: our fields only; fields that we had and that are not in the manifest go."""
        metadata = manifest["metadata"]
        query = {"fieldManager": FIELD_MANAGER, "force": "true"} | ({"dryRun": "All"} if dry_run else {})
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
        """Delete an object; one that is gone is fine."""
        # All of it in the body: beside one, the API server does not look at the query, and would delete in a dry run.
        options = {"kind": "DeleteOptions", "apiVersion": "v1"}
        body = options | ({"preconditions": {"uid": uid}} if uid else {}) | ({"dryRun": ["All"]} if dry_run else {})
        try:
            self._request("DELETE", resource.path(namespace, name), body=body)
        except ObjectNotFoundError:
            return

    def check(self) -> None:
        """Whether the hub answers."""
        self._session.get("/version")

    def close(self) -> None:
        """Close connections."""
        self._session.close()

    def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        return request_with_retry(self._session, method, path, **options)
