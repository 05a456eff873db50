"""Converts a plan to objects (Placements and PlacementBindings), and back.

    per configuration   Placement and PlacementBinding of its Policy, selecting the cluster
    per workload        the Placement that its ManifestWorkReplicaSet names, selecting its clusters once they report
                        that their configuration is in force

Names are derived from the cluster alone. A new configuration of a cluster is therefore a change of one object, and a
cluster never has two configurations. Annotations store the plan for later runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import yaml
from pydantic import TypeAdapter

from dsf.api import kubeyaml
from dsf.api.naming import MAX_LABEL_VALUE_LENGTH
from dsf.api.types import GROUP, MANAGED_BY, MANAGED_BY_LABEL
from dsf.kube.resources import PLACEMENTS, Resource
from dsf.optimizer.model import CurrentAssignment
from dsf.optimizer.selector import PlacementSelector
from dsf.optimizer.views import AssignmentView, ConfigurationView, PlanView
from dsf.placements.kinds import PLACEMENT_BINDINGS, POLICIES

Manifest = dict[str, Any]

#: Label of every object of a plan.
GENERATED_LABEL: Final = "dynamic-scoring-framework-mcp/generated"
#: Label selector for these objects.
GENERATED: Final = f"{GENERATED_LABEL}=true"
#: Annotation with the id of the plan.
PLAN_ID: Final = f"{GROUP}/plan-id"
#: Annotation with the number of objects of the plan.
PLAN_OBJECTS: Final = f"{GROUP}/plan-objects"
#: Annotation of a configuration's or workload's Placement with its part of the plan, in JSON.
CONFIGURATION: Final = f"{GROUP}/plan-configuration"
ASSIGNMENTS: Final = f"{GROUP}/plan-assignments"

#: Kinds in the order in which they are written.
KINDS: Final = (PLACEMENTS, PLACEMENT_BINDINGS)
#: Hex digits of a name's hash.
_HASH_LENGTH: Final = 8


def compute_plan_id(namespace: str, plan: PlanView) -> str:
    """Return the id of a plan, which depends on assignments and on configurations, but not on scores."""
    content = {
        "namespace": namespace,
        "assignments": sorted(
            (assignment.workload, assignment.cluster, assignment.policy, assignment.replicas)
            for assignment in plan.assignments
        ),
        "configurations": sorted(
            (configuration.cluster, configuration.policy) for configuration in plan.configurations
        ),
    }
    return _compute_hash(json.dumps(content, sort_keys=True), 16)


def make_name(prefix: str, cluster: str) -> str:
    """Return the name of an object for a cluster; the hash distinguishes long names with a common prefix."""
    digest = _compute_hash(cluster, _HASH_LENGTH)
    # PlacementDecisions have a label with their Placement's name, so the limit of label values applies.
    head = cluster[: MAX_LABEL_VALUE_LENGTH - len(prefix) - _HASH_LENGTH - 2].rstrip("-.")
    return f"{prefix}-{head}-{digest}"


def render(
    namespace: str,
    plan: PlanView,
    placements: Mapping[str, str],
    selector: PlacementSelector,
    values: Mapping[str, str],
) -> list[Manifest]:
    """Return the objects of a plan, in the order in which to write them.

    `placements` has the name of the Placement of each workload, and `values` the value by which the selector selects
    each cluster.
    """
    manifests: list[Manifest] = []
    for configuration in plan.configurations:
        name = make_name("placement", configuration.cluster)
        spec = _make_spec(selector.make_predicate([values[configuration.cluster]]), 1)
        manifests.append(
            _make_object(
                PLACEMENTS, namespace, name, {CONFIGURATION: _dump_json(configuration.model_dump())}, {"spec": spec}
            )
        )
    for configuration in plan.configurations:
        binding = {
            "placementRef": {
                "apiGroup": PLACEMENTS.group,
                "kind": PLACEMENTS.kind,
                "name": make_name("placement", configuration.cluster),
            },
            "subjects": [{"apiGroup": POLICIES.group, "kind": POLICIES.kind, "name": configuration.policy}],
        }
        manifests.append(
            _make_object(PLACEMENT_BINDINGS, namespace, make_name("binding", configuration.cluster), {}, binding)
        )
    assignments_by_workload: dict[str, list[AssignmentView]] = {}
    for assignment in plan.assignments:
        assignments_by_workload.setdefault(assignment.workload, []).append(assignment)
    for workload, assignments in sorted(assignments_by_workload.items()):
        selected_values = [values[assignment.cluster] for assignment in assignments]
        spec = _make_spec(
            selector.make_predicate(selected_values, compliant=True),
            sum(assignment.replicas for assignment in assignments),
        )
        annotations = {ASSIGNMENTS: _dump_json([assignment.model_dump() for assignment in assignments])}
        manifests.append(_make_object(PLACEMENTS, namespace, placements[workload], annotations, {"spec": spec}))
    identity = compute_plan_id(namespace, plan)
    for manifest in manifests:
        manifest["metadata"]["annotations"] |= {PLAN_ID: identity, PLAN_OBJECTS: str(len(manifests))}
    return manifests


_ASSIGNMENTS: Final = TypeAdapter(list[AssignmentView])


def read_plan(objects: Iterable[Mapping[str, Any]]) -> PlanView:
    """Read a plan from its objects. Invalid annotations are ignored."""
    assignments: list[AssignmentView] = []
    configurations: list[ConfigurationView] = []
    for manifest in objects:
        annotations = manifest["metadata"].get("annotations") or {}
        try:
            if CONFIGURATION in annotations:
                configurations.append(ConfigurationView.model_validate_json(annotations[CONFIGURATION]))
            if ASSIGNMENTS in annotations:
                # pydantic bounds the depth, and refuses text that is not UTF-8.
                assignments += _ASSIGNMENTS.validate_json(annotations[ASSIGNMENTS])
        except (ValueError, TypeError):
            continue
    return PlanView(
        assignments=sorted(assignments, key=lambda assignment: (assignment.workload, assignment.cluster)),
        configurations=sorted(configurations, key=lambda configuration: configuration.cluster),
    )


def find_current_assignments(plan: PlanView) -> dict[str, list[CurrentAssignment]]:
    """Return the assignments of a plan's workloads, by name, with at most one per cluster, as in planning."""
    current_assignments: dict[str, dict[str, CurrentAssignment]] = {}
    for assignment in plan.assignments:
        current_assignments.setdefault(assignment.workload, {})[assignment.cluster] = CurrentAssignment(
            assignment.cluster, assignment.device, assignment.replicas
        )
    return {workload: list(by_cluster.values()) for workload, by_cluster in current_assignments.items()}


def dump(manifests: Sequence[Manifest]) -> str:
    """Return the objects as YAML documents."""
    text: str = yaml.dump_all(manifests, Dumper=kubeyaml.Dumper, sort_keys=False, explicit_start=True)
    return text


def find_resource(manifest: Mapping[str, Any]) -> Resource:
    """Return the resource of an object of one of `KINDS`."""
    return next(resource for resource in KINDS if resource.kind == manifest["kind"])


def _make_object(
    resource: Resource, namespace: str, name: str, annotations: dict[str, str], content: dict[str, Any]
) -> Manifest:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {GENERATED_LABEL: "true", MANAGED_BY_LABEL: MANAGED_BY},
            "annotations": annotations,
        },
        **content,
    }


def _make_spec(predicate: dict[str, Any], clusters: int) -> dict[str, Any]:
    return {"numberOfClusters": clusters, "predicates": [{"requiredClusterSelector": predicate}]}


def _dump_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _compute_hash(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]
