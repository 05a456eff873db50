"""The hub's objects in memory, for unit tests of their readers and writers."""

from __future__ import annotations

from collections.abc import Set
from typing import cast

from dsf.backends.protocol import Backend, Credentials, Kind, Manifest, ObjectKey
from dsf.errors import BackendError
from dsf.redisacl.keyids import KeyIds


class Objects:
    """Objects of a backend, in memory. Changes notify no watcher."""

    def __init__(self, *manifests: Manifest) -> None:
        self.objects: dict[ObjectKey, Manifest] = {}
        #: (kind, reason, message)
        self.events: list[tuple[Kind, str, str]] = []
        #: Namespace -> text.
        self.claims: dict[str, str] = {}
        #: Raised when claims are stored.
        self.failure: BackendError | None = None
        self.ids: KeyIds | None = None
        self._version = 0
        for manifest in manifests:
            self.put(manifest)

    @property
    def backend(self) -> Backend:
        """A backend of these objects, for tests that need one."""
        return cast("Backend", self)

    def put(self, manifest: Manifest) -> ObjectKey:
        """Create or replace an object."""
        self._version += 1
        metadata = {**manifest["metadata"], "resourceVersion": str(self._version)}
        key = ObjectKey(Kind(manifest["kind"]), metadata.get("namespace") or "", metadata["name"])
        self.objects[key] = {**manifest, "metadata": metadata}
        return key

    def take(self, kind: Kind) -> Manifest:
        """Remove the only object of a kind."""
        [key] = self.list_keys(kind)
        return self.objects.pop(key)

    def list(self, kind: Kind) -> list[Manifest]:
        return [self.objects[key] for key in self.list_keys(kind)]

    def list_keys(self, kind: Kind) -> list[ObjectKey]:
        return [key for key in self.objects if key.kind is kind]

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        return self.objects.get(ObjectKey(kind, namespace, name))

    def apply(self, manifest: Manifest) -> None:
        self.put({**manifest, "metadata": {**manifest["metadata"], "generation": 1}})

    def delete(self, kind: Kind, namespace: str, name: str) -> None:
        self.objects.pop(ObjectKey(kind, namespace, name), None)

    def remove_finalizers(self, kind: Kind, namespace: str, name: str, finalizers: Set[str]) -> None:
        key = ObjectKey(kind, namespace, name)
        metadata = self.objects[key]["metadata"]
        remaining = [finalizer for finalizer in metadata.get("finalizers", ()) if finalizer not in finalizers]
        if metadata.get("deletionTimestamp") and not remaining:
            del self.objects[key]
        else:
            metadata["finalizers"] = remaining

    def update_status(self, kind: Kind, namespace: str, name: str, status: Manifest) -> None:
        key = ObjectKey(kind, namespace, name)
        self.objects[key] = {**self.objects[key], "status": status}

    def deliver_credentials(self, cluster: str, credentials: Credentials) -> None:
        del cluster
        self.ids = credentials.key_ids

    def remove_credentials(self, cluster: str) -> None:
        del cluster
        self.ids = None

    def get_delivered_key_ids(self, cluster: str) -> KeyIds | None:
        del cluster
        return self.ids

    def record_event(self, key: ObjectKey, type_: str, reason: str, message: str) -> None:
        del type_
        self.events.append((key.kind, reason, message))

    def describe_missing_fields(self) -> str:
        return ""

    def read_name_claims(self, namespace: str) -> str:
        return self.claims.get(namespace, "")

    def keep_name_claims(self, namespace: str, text: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.claims[namespace] = text
