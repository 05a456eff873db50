"""Watched kinds, and the parts of an object that the hub keeps.

Whole objects would take too much memory in a large fleet: 35,000 AddOnPlacementScores of ten items take 250 MB with
their status and 30 MB without; so of these a hash of the items is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dsf.api.types import (
    ADDON_NAME,
    CREDENTIALS_WORK_NAME,
    DELIVER_LABEL,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    MANIFESTWORK_NAME,
)
from dsf.backends.protocol import Kind
from dsf.backends.scorestate import seconds, state_of
from dsf.kube.reflector import without_managed_fields
from dsf.kube.resources import (
    ADDON_PLACEMENT_SCORES,
    DYNAMIC_SCORERS,
    DYNAMIC_SCORING_CONFIGS,
    MANAGED_CLUSTER_ADDONS,
    MANAGED_CLUSTER_SETS,
    MANAGED_CLUSTERS,
    MANIFEST_WORKS,
    SCORING_AUTHENTICATIONS,
    SECRETS,
    Resource,
)
from dsf.kube.store import Object

#: Field manager of the hub's writes.
FIELD_MANAGER: Final = "dynamic-scoring-hub"


def _cluster(obj: Object) -> Object:
    # Capacity and versions change often and are not used.
    return _with_status(without_managed_fields(obj), "conditions", "clusterClaims")


def _cluster_set(obj: Object) -> Object:
    # Its status counts its clusters.
    return _with_status(without_managed_fields(obj))


def _work(obj: Object) -> Object:
    # Each manifest's state on the managed cluster; the conditions summarize it.
    return _with_status(without_managed_fields(obj), "conditions")


def score_parts(obj: Object) -> Object:
    """The identity of a score, and its state."""
    metadata = obj["metadata"]
    identity = {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion")}
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "metadata": identity,
        "state": state_of(obj, written_at=_written_at(metadata)),
    }


def _written_at(metadata: Object) -> float:
    """When the hub wrote the status last, in unix seconds; 0 if it did not."""
    times = [
        seconds(entry.get("time"))
        for entry in metadata.get("managedFields") or ()
        if entry.get("manager") == FIELD_MANAGER and entry.get("subresource") == "status"
    ]
    return max(times, default=0.0)


def _with_status(obj: Object, *names: str) -> Object:
    status = obj.get("status") or {}
    obj["status"] = {name: status[name] for name in names if name in status}
    return obj


def _is_any_other(old: Object, new: Object) -> bool:
    """True if the kept parts differ."""
    return _without_version(old) != _without_version(new)


def _may_be_any_other(old: Object, new: Object) -> bool:
    """The hub compares with what it saw. The answer to its write of a status may have brought an edit into the store
    before the watch does, and then the two are the same here. After a list instead of a watch the next full look finds
    such an edit."""
    del old, new
    return True


def _without_version(obj: Object) -> dict[str, Any]:
    metadata = {name: value for name, value in obj["metadata"].items() if name != "resourceVersion"}
    return {**obj, "metadata": metadata}


@dataclass(frozen=True)
class Watched:
    """Watch settings of a kind."""

    resource: Resource
    selectors: Mapping[str, str] = field(default_factory=dict)
    #: If given, only objects of these names, each listed and watched by itself, so that RBAC can name them.
    names: tuple[str, ...] = ()
    #: Reduces an object to its used parts.
    keep: Callable[[Object], Object] = without_managed_fields
    #: Whether a change is relevant to the hub.
    matters: Callable[[Object, Object], bool] = _is_any_other


_OURS: Final = {"labelSelector": f"{MANAGED_BY_LABEL}={MANAGED_BY}"}

WATCHED: Final[Mapping[Kind, Watched]] = {
    Kind.SCORER: Watched(DYNAMIC_SCORERS, matters=_may_be_any_other),
    Kind.CONFIG: Watched(DYNAMIC_SCORING_CONFIGS, matters=_may_be_any_other),
    Kind.AUTHENTICATION: Watched(SCORING_AUTHENTICATIONS),
    Kind.CLUSTER: Watched(MANAGED_CLUSTERS, keep=_cluster),
    Kind.CLUSTER_SET: Watched(MANAGED_CLUSTER_SETS, keep=_cluster_set),
    # A work without the label is reported as deleted, and gets it back.
    Kind.WORK: Watched(MANIFEST_WORKS, _OURS, names=(MANIFESTWORK_NAME, CREDENTIALS_WORK_NAME), keep=_work),
    # A score that lost the label is reported as deleted: it is not the framework's any more.
    Kind.SCORE: Watched(ADDON_PLACEMENT_SCORES, _OURS, keep=score_parts),
    # Only in the hub's namespace. Secrets without the label are never read.
    Kind.SECRET: Watched(SECRETS, {"labelSelector": f"{DELIVER_LABEL}=true"}),
    Kind.ADDON: Watched(MANAGED_CLUSTER_ADDONS, names=(ADDON_NAME,)),
}
