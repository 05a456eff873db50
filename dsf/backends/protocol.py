"""What the hub needs of the place where its objects live: a folder of YAML files, or Kubernetes.

Everything outside `dsf.backends` speaks to these protocols and knows no place. Objects are plain dicts as in their
manifests. All methods may be called from any thread. Those that write raise BackendError when the place cannot be
written; the caller tries again later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol

from dsf.api.manifest import Problem
from dsf.cells import Cells
from dsf.redisacl.keyids import KeyIds

Manifest = dict[str, Any]


class Kind(StrEnum):
    """The kinds of objects that the hub reads or writes."""

    SCORER = "DynamicScorer"
    CONFIG = "DynamicScoringConfig"
    AUTHENTICATION = "ScoringAuthentication"
    CLUSTER = "ManagedCluster"
    WORK = "ManifestWork"
    SCORE = "AddOnPlacementScore"
    #: In the cluster's namespace; read only when the hub serves clusters that have the addon.
    ADDON = "ManagedClusterAddOn"
    #: Those of the hub's own namespace that clusters may have; read only when the hub delivers Secrets.
    SECRET = "Secret"  # noqa: S105 - the name of a kind


class ObjectKey(NamedTuple):
    """Names one object. The namespace of an object that has none is empty.

    It says that something may have changed and where to look, never what: its receiver reads the object.
    """

    kind: Kind
    namespace: str
    name: str


@dataclass(frozen=True)
class Credentials:
    """What an agent shows who it is with, and which of its credentials are valid."""

    key_ids: KeyIds
    #: `<id>:<hex>`.
    signing_key: str = field(repr=False)
    #: Of the cluster's user in Redis; empty where clusters have no users of their own.
    redis_password: str = field(default="", repr=False)
    #: Of the Sentinels; empty where there are none, or none that want one.
    sentinel_password: str = field(default="", repr=False)
    #: `.dockerconfigjson` with which the cluster pulls the agent's image; empty where it needs none from here.
    pull_secret: str = field(default="", repr=False)


EventType = Literal["Normal", "Warning"]
OnChange = Callable[[ObjectKey], None]


class ScoreBackend(Protocol):
    """The part that the writer of scores needs; it has no life cycle."""

    def apply_score(self, manifest: Manifest, status: Manifest) -> None:
        """Make the AddOnPlacementScore exist as `manifest` says and have exactly this status.

        Raises ObjectNotFoundError when its cluster is not there.
        """

    def delete_score(self, namespace: str, name: str) -> None:
        """Remove the AddOnPlacementScore, unless another cell wrote it; it is no error when it is not there."""


class Backend(ScoreBackend, Protocol):
    """Where the hub's objects live."""

    @property
    def shared_by(self) -> Cells:
        """The cells that write into this same place; none where each cell has a place of its own."""

    def start(self, on_change: OnChange) -> None:
        """Begin to watch. Returns when every object was read once; from then on `list` and `get` know them all.

        `on_change` is called for each object that is there, then for each one that appears, changes or goes, also
        when the change was the hub's own. Changes of what carries the agents' credentials are told as those of a
        ManifestWork. It must return quickly and is called by one thread at a time.
        """

    def stop(self) -> None:
        """Stop watching and let go of all resources. `on_change` is not called any more once this returned.

        It may be called twice.
        """

    def interrupt(self) -> None:
        """Make a `start` that waits in another thread raise BackendError soon. `stop` is called all the same."""

    def list(self, kind: Kind) -> list[Manifest]:
        """All objects of a kind; none of a kind that the place does not have. They are shared: do not change them.

        `metadata` has uid, generation, creationTimestamp and a resourceVersion that differs whenever the object does.
        """

    def keys(self, kind: Kind) -> Sequence[ObjectKey]:
        """The keys of all objects of a kind, without reading them."""

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """One object, or None. It is shared: do not change it."""

    def apply(self, manifest: Manifest) -> None:
        """Make an object exist and its fields have these values (server-side apply).

        Fields, labels and finalizers that are not in `manifest` belong to others and stay. A status in it is ignored.
        """

    def update_status(self, kind: Kind, namespace: str, name: str, status: Manifest) -> None:
        """Make this the object's status. Raises ObjectNotFoundError when the object is not there.

        Where cells share this place: the parts of the others in `cells` stay, and for all but the first cell all else.
        """

    def delete(self, kind: Kind, namespace: str, name: str) -> None:
        """Remove an object; it is no error when it is not there."""

    def add_finalizer(self, kind: Kind, namespace: str, name: str, finalizer: str) -> None:
        """Keep the object after its deletion until `remove_finalizer`.

        Where objects cannot be kept this does nothing: the clean-up must also happen when the object is gone.
        """

    def remove_finalizer(self, kind: Kind, namespace: str, name: str, finalizer: str) -> None:
        """Let the deletion of the object end; it is no error when object or finalizer are not there."""

    def event(self, about: ObjectKey, type_: EventType, reason: str, message: str) -> None:
        """Tell people what happened to an object. Repetitions are counted, not listed. Never raises."""

    def problems(self) -> Sequence[Problem]:
        """The mistakes there are now in what people wrote."""

    def signing_secret(self) -> str:
        """The hub's master secret in hex, made at the first call ever and kept."""

    def deliver_credentials(self, cluster: str, credentials: Credentials) -> None:
        """Bring the cluster's agent its credentials; nothing is written when they are there."""

    def delivered_key_ids(self, cluster: str) -> KeyIds | None:
        """The key ids of what was delivered last; None when nothing is there. It outlives this process and Redis."""

    def remove_credentials(self, cluster: str) -> None:
        """Take away what `deliver_credentials` brought; it is no error when nothing is there, and costs nothing."""

    def hand_over(self, cluster: str, cell: str) -> None:
        """Leave what was delivered to a cluster to this other cell, which takes it over or has done so.

        Where cells have places of their own it goes: the other cell cannot find it here.
        """


class Election(Protocol):
    """Which of several hub controllers works."""

    @property
    def leading(self) -> bool:
        """Whether this one does."""

    @property
    def campaigning(self) -> bool:
        """Whether this one does, or waits for its turn, after `start`."""

    def start(self) -> None:
        """Begin to campaign."""

    def stop(self) -> None:
        """Hand over. Call it after all work has stopped; it may be called without `start`."""
