"""Protocols of the hub's backends: a folder of YAML files, or Kubernetes.

Code outside of `dsf.backends` uses only these protocols. Objects are plain dicts with the fields of their manifests.
All methods are thread-safe. Methods that write raise BackendError if writing fails, and their callers retry later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple, Protocol, Self

from dsf.backends.scorestate import ScoreState
from dsf.redisacl.keyids import KeyIds

Manifest = dict[str, Any]
#: Field of an object whose spec the backend has dropped. It contains the reason, as a sentence for the author.
PROBLEM_FIELD: Final = "problem"


class Kind(StrEnum):
    """The kinds of objects that the hub reads or writes."""

    SCORER = "DynamicScorer"
    CONFIG = "DynamicScoringConfig"
    AUTHENTICATION = "ScoringAuthentication"
    CLUSTER = "ManagedCluster"
    #: Read only. A folder of manifests has no objects of this kind.
    CLUSTER_SET = "ManagedClusterSet"
    WORK = "ManifestWork"
    SCORE = "AddOnPlacementScore"
    #: In the cluster's namespace; read only if the hub serves clusters with the addon.
    ADDON = "ManagedClusterAddOn"
    #: Secrets of the hub's own namespace for delivery to clusters; read only if the hub delivers Secrets.
    SECRET = "Secret"  # noqa: S105 - the name of a kind


class ObjectKey(NamedTuple):
    """Key of an object; the namespace of a cluster-scoped object is empty.

    A notification consists of the key of an object that may have changed: the receiver reads the object.
    """

    kind: Kind
    namespace: str
    name: str

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> Self:
        """Return the key of a manifest. Raises KeyError or ValueError if name or kind is missing or unknown."""
        metadata = manifest["metadata"]
        return cls(Kind(manifest["kind"]), metadata.get("namespace") or "", metadata["name"])


@dataclass(frozen=True)
class Credentials:
    """An agent's credentials, and the valid key ids."""

    key_ids: KeyIds
    #: Key id and key, as `<id>:<hex>`.
    signing_key: str = field(repr=False)
    #: Password of the cluster's user in Redis; empty if clusters have no separate users.
    redis_password: str = field(default="", repr=False)
    #: Password of the Sentinels; empty without Sentinels, or if they need none.
    sentinel_password: str = field(default="", repr=False)
    #: `.dockerconfigjson` for pulling the agent's image; empty if the hub delivers none.
    pull_secret: str = field(default="", repr=False)


EventType = Literal["Normal", "Warning"]
OnChange = Callable[[ObjectKey], None]


class ScoreBackend(Protocol):
    """Interface of the backend for the score writer."""

    def list_keys(self, kind: Kind) -> Sequence[ObjectKey]:
        """Return the keys of all objects of a kind, without reading the objects.

        For AddOnPlacementScore, return only the keys of the framework's objects.
        """

    def find_score(self, namespace: str, name: str) -> ScoreState | None:
        """Return the cached state of an AddOnPlacementScore of the framework, or None. Sends no request."""

    def apply_score(self, manifest: Manifest, status: Manifest) -> ScoreState:
        """Create or update the AddOnPlacementScore in `manifest` and replace its status; return the written state.

        Raises ForeignObjectError if the framework did not create the object of that name, and ObjectNotFoundError if
        the cluster does not exist.
        """

    def adopt_scores(self, plan_adoption: Callable[[str, str, float], tuple[Manifest, datetime] | None]) -> int:
        """Adopt the scores of the original project's agent, which never expire; return the number of adopted scores.

        `plan_adoption` gets namespace, name and creation time (unix seconds) of each object that may be such a score.
        It returns the framework's manifest without status, and the end of the current items' validity; or None to skip
        the object.
        """

    def delete_score(self, namespace: str, name: str) -> None:
        """Delete the AddOnPlacementScore, if it exists and belongs to the framework."""


class Backend(ScoreBackend, Protocol):
    """Interface of the store of the hub's objects."""

    def start(self, on_change: OnChange) -> None:
        """Start watching. Returns after all objects have been read; `list` and `get` then return all objects.

        `on_change` is called for each existing object, then for each created, changed or deleted object, including
        changes by the hub, but not if only the status of a DynamicScorer or DynamicScoringConfig changed. A change of
        an agent's credentials is reported as a change of a ManifestWork. The callback must return quickly, and is
        called by a single thread at a time.
        """

    def stop(self) -> None:
        """Stop watching and release all resources. Calls of `on_change` have ended afterwards. May be called twice."""

    def interrupt(self) -> None:
        """End a `start` in another thread: it raises BackendError soon. `stop` must still be called."""

    def list(self, kind: Kind) -> list[Manifest]:
        """Return all objects of a kind other than AddOnPlacementScore; empty for an unsupported kind.

        Callers share the objects and must not change them; the backend replaces changed objects. `metadata` contains
        uid, generation and creationTimestamp.
        """

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return an object, or None. Callers share the object and must not change it."""

    def apply(self, manifest: Manifest) -> None:
        """Create an object, or set the fields in `manifest` except its status (server-side apply).

        Other fields, labels and finalizers of an existing object stay.
        """

    def update_status(self, kind: Kind, namespace: str, name: str, status: Manifest) -> None:
        """Set the object's status. Raises ObjectNotFoundError if the object does not exist."""

    def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete an object, if it exists."""

    def remove_finalizers(self, kind: Kind, namespace: str, name: str, finalizers: Set[str]) -> None:
        """Remove those of `finalizers` that an object has. Skips a missing object.

        Raises ObjectConflictError if the object has changed since it was read.
        """

    def record_event(self, key: ObjectKey, type_: EventType, reason: str, message: str) -> None:
        """Record an event about an object, within the limit of `dsf.backends.eventlimit`. Never raises."""

    def describe_missing_fields(self) -> str:
        """Return a sentence about fields that the store drops from objects of this version; empty if it keeps all.

        Raises BackendError.
        """

    def get_master_secret(self) -> str:
        """Return the hub's master secret in hex; the first call creates and stores the secret."""

    def read_name_claims(self, namespace: str) -> str:
        """Return the text that `keep_name_claims` stored for a namespace; empty without such a text.

        The text survives restarts of the hub and the loss of Redis.
        """

    def keep_name_claims(self, namespace: str, text: str) -> None:
        """Replace the text of `read_name_claims` for a namespace.

        Raises ObjectConflictError if another process has replaced the text since this process read or wrote it; the
        next `read_name_claims` then reads the new text.
        """

    def deliver_credentials(self, cluster: str, credentials: Credentials) -> None:
        """Deliver the credentials to the cluster's agent, unless the same credentials were delivered before."""

    def get_delivered_key_ids(self, cluster: str) -> KeyIds | None:
        """Return the last delivered key ids, or None. They survive restarts of the hub and the loss of Redis."""

    def remove_credentials(self, cluster: str) -> None:
        """Remove delivered credentials. Sends no request if none were delivered."""


class Election(Protocol):
    """Leader election among hub controllers."""

    @property
    def is_leading(self) -> bool:
        """True if this candidate is the leader."""

    @property
    def is_campaigning(self) -> bool:
        """True after `start`, while this hub is the leader or waits for the leadership."""

    def start(self) -> None:
        """Start the candidacy."""

    def stop(self) -> None:
        """Release the leadership. Call it after all work has stopped, with or without a `start`."""
