"""The state of a stored AddOnPlacementScore: the parts that the score writer compares with the desired score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from dsf.api.meta import Condition, format_rfc3339
from dsf.api.naming import sanitize_resource_name
from dsf.api.score import compute_items_digest
from dsf.api.types import CLUSTER_KIND, MANAGED_BY, MANAGED_BY_LABEL, SCORE_CONDITION, SCORER_NAME_LABEL
from dsf.reasons import WriteReason

Manifest = Mapping[str, Any]

#: Unix time of the start of the year 10000, which Python's times cannot represent.
_YEAR_10000: Final = 253_402_300_800.0


@dataclass(frozen=True)
class ScoreState:
    """State of an AddOnPlacementScore of the framework. Times are unix seconds; 0 stands for no time."""

    uid: str
    #: Value of the label with the scorer's name.
    scorer: str
    #: uid of the ManagedCluster that owns the object.
    owner: str
    #: Hash of the items; empty if they cannot be read.
    digest: str
    valid_until: float
    #: Time of the last transition of the object's condition.
    condition_changed_at: float
    #: Time of the last write of the status.
    written_at: float
    is_being_deleted: bool = False
    #: True if the items are those of the original project's agent.
    was_written_by_upstream: bool = False


def is_ours(manifest: Manifest) -> bool:
    """True if an object has the framework's label. The hub neither changes nor deletes other objects."""
    labels = manifest["metadata"].get("labels")
    return isinstance(labels, Mapping) and labels.get(MANAGED_BY_LABEL) == MANAGED_BY


def read_score_state(manifest: Manifest, *, written_at: float) -> ScoreState:
    """Return the state of a stored score. Unreadable fields count as missing, because users may edit the object.

    `written_at` is the time of the last write of the status in unix seconds.
    """
    metadata = manifest["metadata"]
    status = _ensure_mapping(manifest.get("status"))
    conditions = status.get("conditions")
    first_condition = _ensure_mapping(conditions[0] if isinstance(conditions, list) and conditions else None)
    return ScoreState(
        uid=str(metadata.get("uid", "")),
        scorer=str(_ensure_mapping(metadata.get("labels")).get(SCORER_NAME_LABEL, "")),
        owner=_find_owner(metadata),
        digest=_compute_digest(status.get("scores")),
        valid_until=parse_kube_time(status.get("validUntil")),
        condition_changed_at=parse_kube_time(first_condition.get("lastTransitionTime")),
        written_at=written_at,
        is_being_deleted=bool(metadata.get("deletionTimestamp")),
        was_written_by_upstream=first_condition.get("reason") == WriteReason.WRITTEN_BY_UPSTREAM,
    )


def parse_kube_time(text: object) -> float:
    """Return the unix seconds of a time in Kubernetes' format; 0 for other values and years outside of 1970 to 9999."""
    try:
        time = text if isinstance(text, datetime) else datetime.fromisoformat(str(text))
        seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0.0
    return seconds if 0 <= seconds < _YEAR_10000 else 0.0


def _find_owner(metadata: Mapping[str, Any]) -> str:
    """Return the uid of the ManagedCluster that owns the object; empty without such an owner.

    OCM names a cluster's namespace after the cluster.
    """
    owners = metadata.get("ownerReferences")
    for owner in owners if isinstance(owners, list) else ():
        if _ensure_mapping(owner).get("kind") == CLUSTER_KIND and owner.get("name") == metadata.get("namespace"):
            return str(owner.get("uid", ""))
    return ""


def _compute_digest(scores: object) -> str:
    """Return the hash of the items in `status.scores`; empty if they cannot be read."""
    try:
        return compute_items_digest((str(item["name"]), int(item["value"])) for item in scores or ())  # type: ignore[attr-defined]
    except (TypeError, KeyError, ValueError, AttributeError):
        return ""


def _ensure_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


#: Field manager of the original project's agent, which is the name of its program.
_UPSTREAM_MANAGER: Final = "dynamic-scoring-addon"


def may_be_from_upstream_agent(manifest: Manifest) -> bool:
    """True if the original project's agent may have written an object.

    The agent's objects have no label of the framework, no owner, no conditions and no validity, and their field
    managers are unknown or include the agent. Scores by other controllers may look the same. Therefore the hub adopts
    an object only if it has the name of a planned score, and is not older than the scorer.
    """
    metadata, status = manifest["metadata"], _ensure_mapping(manifest.get("status"))
    managers = {_ensure_mapping(entry).get("manager") for entry in metadata.get("managedFields") or ()}
    # The API server records no manager for an object that was created without any field.
    return (
        (not managers or _UPSTREAM_MANAGER in managers)
        and MANAGED_BY_LABEL not in _ensure_mapping(metadata.get("labels"))
        and not metadata.get("ownerReferences")
        and not status.get("validUntil")
        and not status.get("conditions")
    )


def explain_foreign_object(namespace: str, name: str) -> str:
    """Return the reason why the hub does not write an object of another program, with the remedy."""
    return (
        f"an AddOnPlacementScore {sanitize_resource_name(name)} in namespace {namespace} belongs to somebody else: it "
        f"has no label {MANAGED_BY_LABEL}={MANAGED_BY}; nothing is written; choose another score name, or delete that "
        "object"
    )


def make_adopted_status(stored_score: Manifest, valid_until: datetime) -> dict[str, Any]:
    """Return the status with which the hub adopts a score of the original project's agent.

    The items stay the same, and are valid until `valid_until`.
    """
    status = _ensure_mapping(stored_score.get("status"))
    adopted_condition = Condition(
        type=SCORE_CONDITION,
        status="True",
        reason=WriteReason.WRITTEN_BY_UPSTREAM,
        message="the original project's agent wrote these items; they are valid until the scorer's first score here, "
        "at the latest until validUntil",
        last_transition_time=datetime.now(UTC),
    )
    return {
        "conditions": [adopted_condition.to_manifest()],
        "scores": status.get("scores") or [],
        "validUntil": format_rfc3339(valid_until),
    }
