"""Watched kinds, and the parts of an object that the hub keeps.

Whole objects would take too much memory in a large fleet: 35,000 AddOnPlacementScores with ten items each take 250 MB
with their status, and 30 MB with a hash of the items in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dsf.api.acts import ACTS, MAX_REQUEST, get_annotation
from dsf.api.scorer import MAX_DESCRIPTION_CHARACTERS
from dsf.api.types import (
    ADDON_NAME,
    CREDENTIALS_WORK_NAME,
    DELIVER_LABEL,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    MANIFESTWORK_NAME,
    PAUSED_UNTIL_ANNOTATION,
)
from dsf.backends.memoryshares import estimate_bytes
from dsf.backends.protocol import PROBLEM_FIELD, Kind
from dsf.backends.scorestate import parse_kube_time, read_score_state
from dsf.kube.reflector import drop_managed_fields
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
_ACT_ANNOTATIONS: Final = tuple(get_annotation(act) for act in ACTS)
#: Annotations of a DynamicScorer that the hub reads.
_READ_ANNOTATIONS: Final = (*_ACT_ANNOTATIONS, PAUSED_UNTIL_ANNOTATION)
_ACT_FIELDS: Final = frozenset(f"f:{name}" for name in _ACT_ANNOTATIONS)
#: Maximum bytes in memory of a spec and the object's finalizers. The API server accepts objects of 1.5 MB, and an
#: object of empty lists takes 20 times as much memory.
MAX_SPEC_BYTES: Final = 256 * 1024
#: Smaller limit for objects in namespaces whose scorers the hub ignores: any user with the role `edit` may create them.
MAX_FOREIGN_SPEC_BYTES: Final = 16 * 1024
#: Kinds that users write.
USER_KINDS: Final = frozenset({Kind.SCORER, Kind.CONFIG, Kind.AUTHENTICATION})
_USED_METADATA: Final = (
    *("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"),
    *("finalizers", "managedFields"),
)


def reduce_user_object(obj: Object, max_bytes: int, admit: Callable[[int], str] = lambda _: "") -> Object:
    """Reduce a user's object, which is changed, to the parts that the hub uses, and return it.

    `admit` gets the object's bytes in memory, and returns the reason to drop the spec, or an empty text. The spec is
    also dropped beyond `max_bytes`. `PROBLEM_FIELD` of the object then contains the reason.
    """
    metadata, spec = obj["metadata"], obj.get("spec")
    all_annotations = metadata.get("annotations") or {}
    annotations = {
        name: all_annotations[name][: MAX_REQUEST + 1] for name in _READ_ANNOTATIONS if name in all_annotations
    }
    reduced_metadata = {name: metadata[name] for name in _USED_METADATA if name in metadata}
    obj["metadata"] = {**reduced_metadata, "annotations": annotations} if annotations else reduced_metadata
    if isinstance(spec, dict) and isinstance(description := spec.get("description"), str):
        # The model truncates the description at the same length. One more character tells the model that it is longer.
        spec["description"] = description[: MAX_DESCRIPTION_CHARACTERS + 1]
    size = estimate_bytes(spec, max_bytes) + estimate_bytes(metadata.get("finalizers"), max_bytes)
    if size > max_bytes:
        admit(0)
        problem = f"spec and finalizers take more than {max_bytes} bytes of memory: make them shorter"
    else:
        problem = admit(size + estimate_bytes(annotations, max_bytes))
    if problem:
        obj["metadata"].pop("finalizers", None)
        obj["metadata"].pop("annotations", None)
        obj["spec"] = {}
        obj[PROBLEM_FIELD] = problem
    return obj


def _reduce_scorer(obj: Object) -> Object:
    # Keep only the newest field manager of each act's annotation, which is the author of the act.
    newest_entries: dict[str, Object] = {}
    for entry in obj["metadata"].pop("managedFields", None) or ():
        fields = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:annotations") or {}
        for name in _ACT_FIELDS.intersection(fields):
            if name not in newest_entries or _make_sort_key(newest_entries[name]) < _make_sort_key(entry):
                newest_entries[name] = entry
    if newest_entries:
        obj["metadata"]["managedFields"] = [
            {
                **{name: entry[name] for name in ("manager", "time") if name in entry},
                "fieldsV1": {"f:metadata": {"f:annotations": {act: {}}}},
            }
            for act, entry in newest_entries.items()
        ]
    return obj


def _make_sort_key(entry: Object) -> tuple[str, str]:
    """Return the time and the name of a field manager, by which entries of `managedFields` are sorted."""
    return str(entry.get("time") or ""), str(entry.get("manager") or "")


def _reduce_cluster(obj: Object) -> Object:
    # Drop capacity and versions, which change often and which the hub does not use.
    return _reduce_status(drop_managed_fields(obj), "conditions", "clusterClaims")


def _reduce_cluster_set(obj: Object) -> Object:
    # Drop the status, which contains the number of clusters.
    return _reduce_status(drop_managed_fields(obj))


def _reduce_work(obj: Object) -> Object:
    # Drop the state of each manifest on the managed cluster, which the conditions summarize.
    return _reduce_status(drop_managed_fields(obj), "conditions")


def reduce_score(obj: Object) -> Object:
    """Return an object with the identity and the `ScoreState` of an AddOnPlacementScore."""
    metadata = obj["metadata"]
    identity = {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion")}
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "metadata": identity,
        "state": read_score_state(obj, written_at=_find_written_at(metadata)),
    }


def _find_written_at(metadata: Object) -> float:
    """Return the time of the hub's last write of the status in unix seconds; 0 without a write."""
    times = [
        parse_kube_time(entry.get("time"))
        for entry in metadata.get("managedFields") or ()
        if entry.get("manager") == FIELD_MANAGER and entry.get("subresource") == "status"
    ]
    return max(times, default=0.0)


def _reduce_status(obj: Object, *names: str) -> Object:
    status = obj.get("status") or {}
    obj["status"] = {name: status[name] for name in names if name in status}
    return obj


def _differs(previous_object: Object, current_object: Object) -> bool:
    """True if the objects differ in more than their resourceVersion."""
    return _drop_version(previous_object) != _drop_version(current_object)


def _may_differ(previous_object: Object, current_object: Object) -> bool:
    """Return True for every event, because equal objects may still hide an edit by a user.

    The response to the hub's write of the status may contain the edit, and reaches the store before the watch event
    about the edit. Both objects are then equal, although the hub has not processed the edit. If a list replaces the
    watch event, the next full resync finds the edit.
    """
    del previous_object, current_object
    return True


def _drop_version(obj: Object) -> dict[str, Any]:
    metadata = {name: value for name, value in obj["metadata"].items() if name != "resourceVersion"}
    return {**obj, "metadata": metadata}


@dataclass(frozen=True)
class Watched:
    """Watch settings of a kind."""

    resource: Resource
    selectors: Mapping[str, str] = field(default_factory=dict)
    #: Names of the watched objects; empty for all objects. Each name has its own watch, so that RBAC rules can name it.
    names: tuple[str, ...] = ()
    #: Returns an object with the used parts only.
    reduce: Callable[[Object], Object] = drop_managed_fields
    #: Gets the reduced objects before and after a change; True if the hub must process the change.
    is_relevant: Callable[[Object, Object], bool] = _differs


_MANAGED_BY_SELECTOR: Final = {"labelSelector": f"{MANAGED_BY_LABEL}={MANAGED_BY}"}

WATCHED: Final[Mapping[Kind, Watched]] = {
    Kind.SCORER: Watched(DYNAMIC_SCORERS, reduce=_reduce_scorer, is_relevant=_may_differ),
    Kind.CONFIG: Watched(DYNAMIC_SCORING_CONFIGS, is_relevant=_may_differ),
    Kind.AUTHENTICATION: Watched(SCORING_AUTHENTICATIONS),
    Kind.CLUSTER: Watched(MANAGED_CLUSTERS, reduce=_reduce_cluster),
    Kind.CLUSTER_SET: Watched(MANAGED_CLUSTER_SETS, reduce=_reduce_cluster_set),
    # The watch reports a ManifestWork that lost the label as deleted. The hub then restores the label.
    Kind.WORK: Watched(
        MANIFEST_WORKS, _MANAGED_BY_SELECTOR, names=(MANIFESTWORK_NAME, CREDENTIALS_WORK_NAME), reduce=_reduce_work
    ),
    # The watch reports a score that lost the label as deleted, because it no longer belongs to the framework.
    Kind.SCORE: Watched(ADDON_PLACEMENT_SCORES, _MANAGED_BY_SELECTOR, reduce=reduce_score),
    # The hub watches Secrets only in its own namespace, and never reads Secrets without the label.
    Kind.SECRET: Watched(SECRETS, {"labelSelector": f"{DELIVER_LABEL}=true"}),
    Kind.ADDON: Watched(MANAGED_CLUSTER_ADDONS, names=(ADDON_NAME,)),
}
