"""What the hub watches of each kind, and how little of an object it keeps.

A hub of thousands of clusters would else hold everybody's objects: 35,000 AddOnPlacementScores of ten items are 250 MB
in memory with their status and 30 MB without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dsf.api.types import ADDON_NAME, MANAGED_BY, MANAGED_BY_LABEL, MANIFESTWORK_NAME
from dsf.hub.backend import Kind
from dsf.kube.reflector import without_managed_fields
from dsf.kube.resources import (
    ADDON_PLACEMENT_SCORES,
    DYNAMIC_SCORERS,
    DYNAMIC_SCORING_CONFIGS,
    MANAGED_CLUSTER_ADDONS,
    MANAGED_CLUSTERS,
    MANIFEST_WORKS,
    Resource,
)
from dsf.kube.store import Object

#: Who the API server notes as the owner of the fields that the hub writes.
FIELD_MANAGER: Final = "dynamic-scoring-hub"


def _cluster(obj: Object) -> Object:
    # Capacity and versions change all day long and mean nothing here.
    return _with_status(without_managed_fields(obj), "conditions", "clusterClaims")


def _work(obj: Object) -> Object:
    # What each manifest's state is on the managed cluster: the conditions sum it up.
    return _with_status(without_managed_fields(obj), "conditions")


def _score(obj: Object) -> Object:
    """The metadata, with the others who wrote the status in managedFields."""
    entries = obj["metadata"].pop("managedFields", None) or ()
    others = [
        {name: entry.get(name) for name in ("manager", "operation", "time")}
        for entry in entries
        if entry.get("subresource") == "status" and entry.get("manager") != FIELD_MANAGER
    ]
    if others:
        obj["metadata"]["managedFields"] = others
    obj.pop("status", None)
    return obj


def _with_status(obj: Object, *names: str) -> Object:
    status = obj.get("status") or {}
    obj["status"] = {name: status[name] for name in names if name in status}
    return obj


def _is_any_other(old: Object, new: Object) -> bool:
    """Whether anything differs in what is kept."""
    return _without_version(old) != _without_version(new)


def _is_edited(old: Object, new: Object) -> bool:
    """Whether somebody else changed a score. Those who write scores know what they wrote."""
    others = new["metadata"].get("managedFields")
    return bool(others) and others != old["metadata"].get("managedFields")


def _without_version(obj: Object) -> dict[str, Any]:
    metadata = {name: value for name, value in obj["metadata"].items() if name != "resourceVersion"}
    return {**obj, "metadata": metadata}


@dataclass(frozen=True)
class Watched:
    """How one kind is watched."""

    resource: Resource
    selectors: Mapping[str, str] = field(default_factory=dict)
    #: Makes an object as small as what is used of it.
    keep: Callable[[Object], Object] = without_managed_fields
    #: Whether the hub wants to know of a change.
    matters: Callable[[Object, Object], bool] = _is_any_other


WATCHED: Final[Mapping[Kind, Watched]] = {
    Kind.SCORER: Watched(DYNAMIC_SCORERS),
    Kind.CONFIG: Watched(DYNAMIC_SCORING_CONFIGS),
    Kind.CLUSTER: Watched(MANAGED_CLUSTERS, keep=_cluster),
    Kind.WORK: Watched(MANIFEST_WORKS, {"fieldSelector": f"metadata.name={MANIFESTWORK_NAME}"}, _work),
    Kind.SCORE: Watched(
        ADDON_PLACEMENT_SCORES, {"labelSelector": f"{MANAGED_BY_LABEL}={MANAGED_BY}"}, _score, _is_edited
    ),
    Kind.ADDON: Watched(MANAGED_CLUSTER_ADDONS, {"fieldSelector": f"metadata.name={ADDON_NAME}"}),
}
