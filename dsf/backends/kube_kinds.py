"""Watched kinds, and the parts of an object that the hub keeps.

Whole objects would take too much memory in a large fleet: 35,000 AddOnPlacementScores with ten items each take 250 MB
with their status and 30 MB without. Therefore the hub keeps a hash of the items instead of the status.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dsf.api.acts import ACTS, annotation_of
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
_ACT_FIELDS: Final = frozenset(f"f:{annotation_of(act)}" for act in ACTS)


def _reduce_scorer(obj: Object) -> Object:
    # Keep the field managers of acts, who are their authors.
    entries = obj["metadata"].pop("managedFields", None) or ()
    managers = []
    for entry in entries:
        fields = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:annotations") or {}
        acts: Object = {name: {} for name in fields if name in _ACT_FIELDS}
        if acts:
            reduced = {name: entry[name] for name in ("manager", "time") if name in entry}
            managers.append({**reduced, "fieldsV1": {"f:metadata": {"f:annotations": acts}}})
    if managers:
        obj["metadata"]["managedFields"] = managers
    return obj


def _reduce_cluster(obj: Object) -> Object:
    # Drop capacity and versions, which change often and are not used.
    return _reduce_status(without_managed_fields(obj), "conditions", "clusterClaims")


def _reduce_cluster_set(obj: Object) -> Object:
    # Drop the status, which contains the number of clusters.
    return _reduce_status(without_managed_fields(obj))


def _reduce_work(obj: Object) -> Object:
    # Drop the state of each manifest on the managed cluster, which the conditions summarize.
    return _reduce_status(without_managed_fields(obj), "conditions")


def reduce_score(obj: Object) -> Object:
    """Return an object with the identity and the state of a score."""
    metadata = obj["metadata"]
    identity = {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion")}
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "metadata": identity,
        "state": state_of(obj, written_at=_find_written_at(metadata)),
    }


def _find_written_at(metadata: Object) -> float:
    """Return the time of the hub's last write of the status in unix seconds; 0 without a write."""
    times = [
        seconds(entry.get("time"))
        for entry in metadata.get("managedFields") or ()
        if entry.get("manager") == FIELD_MANAGER and entry.get("subresource") == "status"
    ]
    return max(times, default=0.0)


def _reduce_status(obj: Object, *names: str) -> Object:
    status = obj.get("status") or {}
    obj["status"] = {name: status[name] for name in names if name in status}
    return obj


def _differs(old: Object, new: Object) -> bool:
    """True if the kept parts differ."""
    return _without_version(old) != _without_version(new)


def _may_differ(old: Object, new: Object) -> bool:
    """Return True for every event.

    The response to a write of the status may contain an edit by a user and reach the store before the watch event. Both
    objects are then equal here, although the hub has not seen the edit. After a list instead of a watch, the next full
    resync finds such an edit.
    """
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
    #: If not empty, only objects with these names, each with a separate list and watch, so that RBAC can name them.
    names: tuple[str, ...] = ()
    #: Reduces an object to its used parts.
    keep: Callable[[Object], Object] = without_managed_fields
    #: Whether a change is relevant to the hub.
    matters: Callable[[Object, Object], bool] = _differs


_MANAGED_BY_SELECTOR: Final = {"labelSelector": f"{MANAGED_BY_LABEL}={MANAGED_BY}"}

WATCHED: Final[Mapping[Kind, Watched]] = {
    Kind.SCORER: Watched(DYNAMIC_SCORERS, keep=_reduce_scorer, matters=_may_differ),
    Kind.CONFIG: Watched(DYNAMIC_SCORING_CONFIGS, matters=_may_differ),
    Kind.AUTHENTICATION: Watched(SCORING_AUTHENTICATIONS),
    Kind.CLUSTER: Watched(MANAGED_CLUSTERS, keep=_reduce_cluster),
    Kind.CLUSTER_SET: Watched(MANAGED_CLUSTER_SETS, keep=_reduce_cluster_set),
    # A ManifestWork that lost the label is reported as deleted, and the hub restores the label.
    Kind.WORK: Watched(
        MANIFEST_WORKS, _MANAGED_BY_SELECTOR, names=(MANIFESTWORK_NAME, CREDENTIALS_WORK_NAME), keep=_reduce_work
    ),
    # A score that lost the label is reported as deleted, because it no longer belongs to the framework.
    Kind.SCORE: Watched(ADDON_PLACEMENT_SCORES, _MANAGED_BY_SELECTOR, keep=reduce_score),
    # The hub watches Secrets only in its own namespace, and never reads Secrets without the label.
    Kind.SECRET: Watched(SECRETS, {"labelSelector": f"{DELIVER_LABEL}=true"}),
    Kind.ADDON: Watched(MANAGED_CLUSTER_ADDONS, names=(ADDON_NAME,)),
}
