"""Protocols of the hub's backends: a folder of YAML files, or Kubernetes.

Code outside `dsf.backends` uses only these protocols. Objects are plain dicts as in their manifests. All methods may be
called from any thread. A writing method raises BackendError when the backend cannot be written; the caller retries
later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol, Self

from dsf.backends.scorestate import ScoreState
from dsf.redisacl.keyids import KeyIds

Manifest = dict[str, Any]


class Kind(StrEnum):
    """The kinds of objects that the hub reads or writes."""

    SCORER = "DynamicScorer"
    CONFIG = "DynamicScoringConfig"
    AUTHENTICATION = "ScoringAuthentication"
    CLUSTER = "ManagedCluster"
    #: Read only; a folder of manifests has none.
    CLUSTER_SET = "ManagedClusterSet"
    WORK = "ManifestWork"
    SCORE = "AddOnPlacementScore"
    #: In the cluster's namespace; read only if the hub serves clusters with the addon.
    ADDON = "ManagedClusterAddOn"
    #: Secrets of the hub's own namespace for delivery to clusters; read only if the hub delivers Secrets.
    SECRET = "Secret"  # noqa: S105 - the name of a kind


class ObjectKey(NamedTuple):
    """Key of an object; the namespace of a cluster-scoped one is empty.

    As a notification it means a possible change, without its content: the receiver reads the object.
    """

    kind: Kind
    namespace: str
    name: str

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """The key of a manifest. Raises KeyError or ValueError without kind and name, or for another kind."""
        metadata = manifest["metadata"]
        return cls(Kind(manifest["kind"]), metadata.get("namespace") or "", metadata["name"])


@dataclass(frozen=True)
class Credentials:
    """An agent's credentials, and the valid key ids."""

    key_ids: KeyIds
    #: `<id>:<hex>`.
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
    """The part for the score writer."""

    def keys(self, kind: Kind) -> Sequence[ObjectKey]:
        """The keys of all objects of a kind, without reading them; of scores those of the framework."""

    def score(self, namespace: str, name: str) -> ScoreState | None:
        """Return an AddOnPlacementScore of the framework as it is now; None without one. Costs no request."""

    def apply_score(self, manifest: Manifest, status: Manifest) -> ScoreState:
        """Create or update the AddOnPlacementScore as in `manifest`, with exactly this status; returns it as written.

        Raises ForeignObjectError when the framework did not create the object of that name, and ObjectNotFoundError
        when its cluster does not exist.
        """

    def adopt_scores(self, claim: Callable[[str, str, float], tuple[Manifest, datetime] | None]) -> int:
        """Take over scores of the original project's agent, which have no end and would steer OCM for ever.

        `claim` gets namespace, name and creation time (unix seconds) of each object that looks like one of that agent;
        it returns our object without status and until when its present items are valid, or None for a score to leave
        alone. Returns how many were taken over.
        """

    def delete_score(self, namespace: str, name: str) -> None:
        """Remove the AddOnPlacementScore. No error if it does not exist or the framework did not create it."""


class Backend(ScoreBackend, Protocol):
    """Store of the hub's objects."""

    def start(self, on_change: OnChange) -> None:
        """Start to watch. Returns when every object has been read; from then on `list` and `get` return all of them.

        `on_change` is called for each existing object, then for each created, changed or deleted one, including the
        hub's own changes, but not if only the status of a DynamicScorer or DynamicScoringConfig changed. Changes of the
        agents' credentials are reported as those of a ManifestWork. The callback must return quickly and is called by
        one thread at a time.
        """

    def stop(self) -> None:
        """Stop watching and release all resources. `on_change` is not called after this has returned.

        The method may be called twice.
        """

    def interrupt(self) -> None:
        """Let a `start` that waits in another thread raise BackendError soon. `stop` must still be called."""

    def list(self, kind: Kind) -> list[Manifest]:
        """Return all objects of a kind but AddOnPlacementScore; empty for an unsupported kind.

        The objects are shared: do not change them; a changed object is another one here.
        `metadata` has uid, generation and creationTimestamp.
        """

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return an object, or None. The object is shared: do not change it."""

    def apply(self, manifest: Manifest) -> None:
        """Create an object or set these fields (server-side apply).

        Fields, labels and finalizers that are not in `manifest` belong to others and stay. Its status is ignored.
        """

    def update_status(self, kind: Kind, namespace: str, name: str, status: Manifest) -> None:
        """Set the object's status. Raises ObjectNotFoundError when the object does not exist."""

    def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """Remove an object; no error if it does not exist."""

    def remove_finalizers(self, kind: Kind, namespace: str, name: str, finalizers: Set[str]) -> None:
        """Remove those of `finalizers` that an object has; no error if it does not exist.

        Raises ObjectConflictError if the object has changed since it was read.
        """

    def event(self, about: ObjectKey, type_: EventType, reason: str, message: str) -> None:
        """Record an event about an object, within the limit of `dsf.backends.eventlimit`. Never raises."""

    def signing_secret(self) -> str:
        """The hub's master secret in hex, created at the very first call and kept."""

    def name_claims(self, namespace: str) -> str:
        """Return a namespace's text last kept by `keep_name_claims`; empty without any. The text outlives hub and
        Redis."""

    def keep_name_claims(self, namespace: str, text: str) -> None:
        """Replace the text of `name_claims` for a namespace.

        Raises ObjectConflictError if another process has replaced it since this one read or wrote it; the next
        `name_claims` then reads it again.
        """

    def deliver_credentials(self, cluster: str, credentials: Credentials) -> None:
        """Deliver the credentials to the cluster's agent; nothing is written if they exist."""

    def delivered_key_ids(self, cluster: str) -> KeyIds | None:
        """Return the last delivered key ids; None without any. The ids outlive this process and Redis."""

    def remove_credentials(self, cluster: str) -> None:
        """Remove delivered credentials; without any it is no error and costs nothing."""


class Election(Protocol):
    """Leader election among hub controllers."""

    @property
    def leading(self) -> bool:
        """True if this one is the leader."""

    @property
    def campaigning(self) -> bool:
        """True if this one is the leader or a candidate, after `start`."""

    def start(self) -> None:
        """Start the candidacy."""

    def stop(self) -> None:
        """Release the leadership. Call it after all work has stopped; `start` is not required."""
