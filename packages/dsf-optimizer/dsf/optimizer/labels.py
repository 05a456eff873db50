"""Parses workloads, policies and score objects into the model.

    ManifestWorkReplicaSet  labels app, resource-request-kind, resource-request-amount; spec.placementRefs[0].name
    Policy                  labels resource-supply-kind, resource-supply-amount, resource-supply-device
    AddOnPlacementScore     status.scores, status.validUntil; its namespace is the cluster

A single ManifestError reports all errors. Each error text names the object, the label or field, its value and the
allowed values.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from dsf.api.score import MAX_VALUE, MIN_VALUE
from dsf.errors import ManifestError
from dsf.optimizer.model import (
    MAX_AMOUNT,
    MAX_REPLICAS,
    Cluster,
    Configuration,
    CurrentAssignment,
    PlanInput,
    Preference,
    ScoreTable,
    Workload,
    raise_all,
)

Manifest = Mapping[str, Any]

WORKLOAD_KIND: Final = "ManifestWorkReplicaSet"
POLICY_KIND: Final = "Policy"
SCORE_KIND: Final = "AddOnPlacementScore"

APP_LABEL: Final = "app"
REQUEST_KIND_LABEL: Final = "resource-request-kind"
REQUEST_AMOUNT_LABEL: Final = "resource-request-amount"
#: Number of clusters for the workload; optional, default 1.
REQUEST_REPLICAS_LABEL: Final = "resource-request-replicas"
SUPPLY_KIND_LABEL: Final = "resource-supply-kind"
SUPPLY_AMOUNT_LABEL: Final = "resource-supply-amount"
SUPPLY_DEVICE_LABEL: Final = "resource-supply-device"

_Read = TypeVar("_Read")


def read_problem(
    workloads: Iterable[Manifest],
    policies: Mapping[str, Iterable[Manifest]],
    scores: Iterable[Manifest],
    preferences: Sequence[Preference],
    *,
    now: datetime,
    keep_current: float = 0.0,
    current: Mapping[str, Sequence[CurrentAssignment]] | None = None,
) -> PlanInput:
    """Return the input of the search, parsed from manifests.

    `policies` are the policies that each cluster may get, by cluster name. Scores of other clusters or names are
    ignored. `current` has the current assignments of workloads, by name. Raises ManifestError with all errors.
    """
    errors: list[str] = []

    def collect(read: Callable[..., _Read], *values: Any) -> list[_Read]:
        """Return a list with the result of `read`, or record its error and return an empty list."""
        try:
            return [read(*values)]
        except ManifestError as error:
            errors.append(str(error))
            return []

    current_assignments = current or {}
    score_names = {preference.score for preference in preferences}
    tables: dict[str, list[ScoreTable]] = {cluster: [] for cluster in policies}
    for manifest in scores:
        cluster = _get_metadata(manifest).get("namespace")
        if cluster in tables and _get_metadata(manifest).get("name") in score_names:
            tables[cluster] += collect(read_score, manifest)
    parsed_workloads = [
        workload
        for manifest in workloads
        for workload in collect(read_workload, manifest, current_assignments.get(_get_name(manifest), ()))
    ]
    clusters = []
    for cluster, manifests in policies.items():
        configurations = tuple(
            configuration for manifest in manifests for configuration in collect(read_configuration, manifest)
        )
        clusters += collect(Cluster, cluster, configurations, tuple(tables[cluster]))
    plan_inputs = collect(PlanInput, tuple(parsed_workloads), tuple(clusters), tuple(preferences), now, keep_current)
    raise_all(errors)
    return plan_inputs[0]


class _Reader:
    """Reads labels and fields of one object, and collects the `errors` in them."""

    def __init__(self, manifest: Manifest, kind: str) -> None:
        """Read an object of this kind. Raises ManifestError for an object of another kind, or without a name."""
        self.label = _describe_object(manifest, kind)
        self.errors: list[str] = []
        self._labels = _ensure_mapping(_get_metadata(manifest).get("labels"))

    def read_text(self, label: str, meaning: str) -> str:
        """Return the text of a label; empty after an error."""
        value = self._labels.get(label)
        if isinstance(value, str) and value:
            return value
        self._add_error(label, f"it must be {meaning}")
        return ""

    def read_number(self, label: str, minimum: int, maximum: int, default: int | None = None) -> int:
        """Return the whole number in a label; `minimum` after an error, and `default` without the label."""
        if default is not None and label not in self._labels:
            return default
        value = self._labels.get(label)
        # Check the characters, because int() accepts signs, spaces, underscores and digits of other scripts.
        if isinstance(value, str) and value.isascii() and value.isdigit() and minimum <= int(value) <= maximum:
            return int(value)
        self._add_error(label, f"allowed is a whole number from {minimum} to {maximum}, as text")
        return minimum

    def read_time(self, value: Any) -> datetime | None:
        """Return the time in status.validUntil; None without a value or after an error."""
        if value is None:
            return None
        try:
            moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        except (TypeError, ValueError):
            moment = None
        if moment is None or moment.tzinfo is None:
            allowed_text = "allowed is an RFC 3339 time, such as 2030-01-01T00:00:00Z"
            self.errors.append(f"{self.label}: status.validUntil is {reprlib.repr(value)}; {allowed_text}")
            return None
        return moment

    def _add_error(self, label: str, allowed_text: str) -> None:
        problem = f"is {reprlib.repr(self._labels[label])}" if label in self._labels else "is missing"
        self.errors.append(f"{self.label}: label {label} {problem}; {allowed_text}")


def read_workload(manifest: Manifest, current: Sequence[CurrentAssignment] = ()) -> Workload:
    """Return the workload of a ManifestWorkReplicaSet. Raises ManifestError.

    A Placement selects a cluster at most once, so its replicas go to different clusters.
    """
    reader = _Reader(manifest, WORKLOAD_KIND)
    app = reader.read_text(APP_LABEL, "the app of the score items")
    kind = reader.read_text(REQUEST_KIND_LABEL, "the kind of resource it needs, such as gpu")
    amount = reader.read_number(REQUEST_AMOUNT_LABEL, 0, MAX_AMOUNT)
    replicas = reader.read_number(REQUEST_REPLICAS_LABEL, 1, MAX_REPLICAS, default=1)
    try:
        get_placement_name(manifest)
    except ManifestError as error:
        reader.errors.append(str(error))
    raise_all(reader.errors)
    return Workload(_get_name(manifest), app, {kind: amount}, replicas, per_cluster=1, current=tuple(current))


def get_placement_name(manifest: Manifest) -> str:
    """Return the Placement of a ManifestWorkReplicaSet. Raises ManifestError if it names none."""
    references = _ensure_mapping(manifest.get("spec")).get("placementRefs")
    first_reference = references[0] if isinstance(references, list) and references else None
    name = _ensure_mapping(first_reference).get("name")
    if not isinstance(name, str) or not name:
        label = _describe_object(manifest, WORKLOAD_KIND)
        raise ManifestError(
            f"{label}: spec.placementRefs[0].name is missing; name the Placement that a plan is written to"
        )
    return name


def read_configuration(manifest: Manifest) -> Configuration:
    """Return the configuration that a Policy gives to a cluster.

    Raises ManifestError, also for a disabled Policy, which has no effect.
    """
    reader = _Reader(manifest, POLICY_KIND)
    kind = reader.read_text(SUPPLY_KIND_LABEL, "the kind of resource it supplies, such as gpu")
    amount = reader.read_number(SUPPLY_AMOUNT_LABEL, 0, MAX_AMOUNT)
    device = reader.read_text(SUPPLY_DEVICE_LABEL, "the device of the score items, such as 3g.48gb")
    if _ensure_mapping(manifest.get("spec")).get("disabled") is True:
        reader.errors.append(f"{reader.label}: spec.disabled is true; enable it or leave it out of availablePolicies")
    raise_all(reader.errors)
    return Configuration(_get_name(manifest), device, {kind: amount})


def read_score(manifest: Manifest) -> ScoreTable:
    """Return the items of an AddOnPlacementScore; none while its status is not written yet. Raises ManifestError."""
    reader = _Reader(manifest, SCORE_KIND)
    status = _ensure_mapping(manifest.get("status"))
    items: dict[str, int] = {}
    for index, item in enumerate(status.get("scores") or ()):
        name, value = _ensure_mapping(item).get("name"), _ensure_mapping(item).get("value")
        if not isinstance(name, str) or type(value) is not int or not MIN_VALUE <= value <= MAX_VALUE:
            reader.errors.append(
                f"{reader.label}: status.scores[{index}] is {reprlib.repr(item)}; allowed is a name and a whole number "
                f"from {MIN_VALUE} to {MAX_VALUE}"
            )
        else:
            items[name] = value
    valid_until = reader.read_time(status.get("validUntil"))
    raise_all(reader.errors)
    return ScoreTable(_get_name(manifest), items, valid_until)


def _describe_object(manifest: Manifest, kind: str) -> str:
    """Return kind, namespace and name for messages. Raises ManifestError for another kind, or without a name."""
    actual_kind = manifest.get("kind", kind)
    if actual_kind != kind:
        raise ManifestError(f"{actual_kind} {_get_name(manifest)} is not a {kind}")
    if not _get_name(manifest):
        raise ManifestError(f"a {kind} has no metadata.name")
    namespace = _get_metadata(manifest).get("namespace")
    return f"{kind} {namespace}/{_get_name(manifest)}" if namespace else f"{kind} {_get_name(manifest)}"


def _get_name(manifest: Manifest) -> str:
    name = _get_metadata(manifest).get("name")
    return name if isinstance(name, str) else ""


def _get_metadata(manifest: Manifest) -> Mapping[str, Any]:
    return _ensure_mapping(manifest.get("metadata"))


def _ensure_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
