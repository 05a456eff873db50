"""Watched kinds, and the parts of an object that the hub keeps.

Whole objects would take too much memory in a large fleet: 35,000 AddOnPlacementScores with ten items each take 250 MB
with their status and 30 MB without. Therefore the hub keeps a hash of the items instead of the status.
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
from dsf.backends.memoryshares import measure
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
#: Maximum bytes in memory of a spec with its finalizers. The API server accepts objects of 1.5 MB, which take 20 times
#: as much if they consist of empty lists.
MAX_SPEC_BYTES: Final = 256 * 1024
#: The same of an object in a namespace whose scorers do not count: everybody with the role `edit` may create it.
MAX_FOREIGN_SPEC_BYTES: Final = 16 * 1024
#: Kinds that users write.
USER_KINDS: Final = frozenset({Kind.SCORER, Kind.CONFIG, Kind.AUTHENTICATION})
_USED_METADATA: Final = (
    *("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"),
    *("finalizers", "managedFields"),
)


def reduce_user_object(obj: Object, max_bytes: int, admit: Callable[[int], str] = lambda _: "") -> Object:
    """Return the parts of a user's object that the hub uses; an object beyond `max_bytes` loses its spec.

    `admit` gets the object's bytes, and returns why there is no memory for the spec, empty if there is. `PROBLEM_FIELD`
    of an object without its spec says why.
    """
    metadata, spec = obj["metadata"], obj.get("spec")
    own_annotations = metadata.get("annotations") or {}
    annotations = {
        name: own_annotations[name][: MAX_REQUEST + 1] for name in _READ_ANNOTATIONS if name in own_annotations
    }
    reduced_metadata = {name: metadata[name] for name in _USED_METADATA if name in metadata}
    obj["metadata"] = {**reduced_metadata, "annotations": annotations} if annotations else reduced_metadata
    if isinstance(spec, dict) and isinstance(description := spec.get("description"), str):
        # The models cut it, too.
        spec["description"] = description[: MAX_DESCRIPTION_CHARACTERS + 1]
    size = measure(spec, max_bytes) + measure(metadata.get("finalizers"), max_bytes)
    if size > max_bytes:
        admit(0)
        problem = f"spec and finalizers take more than {max_bytes} bytes of memory: make them shorter"
    else:
        problem = admit(size + measure(annotations, max_bytes))
    if problem:
        obj["metadata"].pop("finalizers", None)
        obj["metadata"].pop("annotations", None)
        obj["spec"] = {}
        obj[PROBLEM_FIELD] = problem
    return obj


def _reduce_scorer(obj: Object) -> Object:
    # Keep the newest field manager of each act, who is its author.
    newest_entries: dict[str, Object] = {}
    for entry in obj["metadata"].pop("managedFields", None) or ():
        fields = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:annotations") or {}
        for name in _ACT_FIELDS.intersection(fields):
            if name not in newest_entries or _get_manager(newest_entries[name]) < _get_manager(entry):
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


def _get_manager(entry: Object) -> tuple[str, str]:
    return str(entry.get("time") or ""), str(entry.get("manager") or "")


def _reduce_cluster(obj: Object) -> Object:
    # Drop capacity and versions, which change often and are not used.
    return _reduce_status(drop_managed_fields(obj), "conditions", "clusterClaims")


def _reduce_cluster_set(obj: Object) -> Object:
    # Drop the status, which contains the number of clusters.
    return _reduce_status(drop_managed_fields(obj))


def _reduce_work(obj: Object) -> Object:
    # Drop the state of each manifest on the managed cluster, which the conditions summarize.
    return _reduce_status(drop_managed_fields(obj), "conditions")


def reduce_score(obj: Object) -> Object:
    """Return an object with the identity and the state of a score."""
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
    """True if the kept parts differ."""
    return _drop_version(previous_object) != _drop_version(current_object)


def _may_differ(previous_object: Object, current_object: Object) -> bool:
    """Return True for every event.

    The response to a write of the status may contain an edit by a user and reach the store before the watch event. Both
    objects are then equal here, although the hub has not seen the edit. After a list instead of a watch, the next full
    resync finds such an edit.
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
    #: If not empty, only objects with these names, each with a separate list and watch, so that RBAC can name them.
    names: tuple[str, ...] = ()
    #: Reduces an object to its used parts.
    keep: Callable[[Object], Object] = drop_managed_fields
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
