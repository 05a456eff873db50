"""Watched kinds, and the parts of an object that the hub keeps.

Whole objects would take too much memory in a large fleet: 35,000 AddOnPlacementScores of ten items take 250 MB with
their status and 30 MB without.
"""

from __future__ import annotations

import json
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
from dsf.kube.reflector import without_managed_fields
from dsf.kube.resources import (
    ADDON_PLACEMENT_SCORES,
    DYNAMIC_SCORERS,
    DYNAMIC_SCORING_CONFIGS,
    MANAGED_CLUSTER_ADDONS,
    MANAGED_CLUSTERS,
    MANIFEST_WORKS,
    SCORING_AUTHENTICATIONS,
    SECRETS,
    Resource,
)
from dsf.kube.store import Object

#: Field manager of the hub's writes.
FIELD_MANAGER: Final = "dynamic-scoring-hub"
#: For a manager that owns nothing: time of its last write, and number of owned fields.
_NOTHING: Final = ("", 0)


def _cluster(obj: Object) -> Object:
    # Capacity and versions change often and are not used.
    return _with_status(without_managed_fields(obj), "conditions", "clusterClaims")


def _work(obj: Object) -> Object:
    # Each manifest's state on the managed cluster; the conditions summarize it.
    return _with_status(without_managed_fields(obj), "conditions")


def _score(obj: Object) -> Object:
    """The metadata, with the part of managedFields that shows changes of other managers."""
    entries = obj["metadata"].pop("managedFields", None) or ()
    obj["metadata"]["managedFields"] = [
        {name: entry.get(name) for name in ("manager", "subresource", "time")}
        | {"fieldsV1": len(json.dumps(entry.get("fieldsV1")))}
        for entry in entries
    ]
    obj.pop("status", None)
    return obj


def _with_status(obj: Object, *names: str) -> Object:
    status = obj.get("status") or {}
    obj["status"] = {name: status[name] for name in names if name in status}
    return obj


def _is_any_other(old: Object, new: Object) -> bool:
    """Whether the kept parts differ."""
    return _without_version(old) != _without_version(new)


def _may_be_any_other(old: Object, new: Object) -> bool:
    """The hub compares with what it saw. The answer to its write of a status may have brought an edit into the store
    before the watch does, and then the two are the same here. After a list instead of a watch the next full look finds
    such an edit."""
    del old, new
    return True


def _is_edited(old: Object, new: Object) -> bool:
    """Whether another manager changed a score. Score writers know their own writes.

    A manager that adds or changes a field becomes its owner; one that removes a field reduces ours without a write of
    ours.
    """
    before, after = _owners(old), _owners(new)
    for who in before.keys() | after.keys():
        (old_time, old_size), (new_time, new_size) = before.get(who, _NOTHING), after.get(who, _NOTHING)
        if who[0] == FIELD_MANAGER:
            # Times are whole seconds, and a repair may be in the same second as the change: then we own more.
            if new_size < old_size and new_time in (old_time, ""):
                return True
        elif new_size > old_size or (new_size and new_time != old_time):
            return True
    return False


def _owners(score: Object) -> dict[tuple[str, str | None], tuple[str, int]]:
    """For each manager and subresource: time of its last write, and number of owned fields."""
    return {
        (entry["manager"], entry["subresource"]): (entry["time"], entry["fieldsV1"])
        for entry in score["metadata"]["managedFields"]
    }


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
    #: Whether a change is relevant to the hub, and whether a new object is.
    matters: Callable[[Object, Object], bool] = _is_any_other
    new_matters: bool = True


_OURS: Final = {"labelSelector": f"{MANAGED_BY_LABEL}={MANAGED_BY}"}

WATCHED: Final[Mapping[Kind, Watched]] = {
    Kind.SCORER: Watched(DYNAMIC_SCORERS, matters=_may_be_any_other),
    Kind.CONFIG: Watched(DYNAMIC_SCORING_CONFIGS, matters=_may_be_any_other),
    Kind.AUTHENTICATION: Watched(SCORING_AUTHENTICATIONS),
    Kind.CLUSTER: Watched(MANAGED_CLUSTERS, keep=_cluster),
    # A work without the label is reported as deleted, and gets it back.
    Kind.WORK: Watched(MANIFEST_WORKS, _OURS, names=(MANIFESTWORK_NAME, CREDENTIALS_WORK_NAME), keep=_work),
    # A new one is the writer's; if not, a full resync finds it.
    Kind.SCORE: Watched(ADDON_PLACEMENT_SCORES, _OURS, keep=_score, matters=_is_edited, new_matters=False),
    # Only in the hub's namespace. Secrets without the label are never read.
    Kind.SECRET: Watched(SECRETS, {"labelSelector": f"{DELIVER_LABEL}=true"}),
    Kind.ADDON: Watched(MANAGED_CLUSTER_ADDONS, names=(ADDON_NAME,)),
}
