"""Plans as objects, and back."""

from __future__ import annotations

import json

import pytest
import yaml

from dsf.api import kubeyaml
from dsf.optimizer.manifests import (
    ASSIGNMENTS,
    CONFIGURATION,
    PLAN_OBJECTS,
    compute_plan_id,
    dump,
    find_current_assignments,
    make_name,
    read_plan,
    render,
)
from dsf.optimizer.model import CurrentAssignment
from dsf.optimizer.selector import PlacementSelector
from dsf.optimizer.views import AssignmentView, ConfigurationView, PlanView
from dsf.optimizer.writer import select_owned_fields

LABEL = PlacementSelector.parse("label:cluster-name")


def assignment(workload: str, cluster: str, score: float = 1, policy: str = "p") -> AssignmentView:
    return AssignmentView(
        workload=workload, cluster=cluster, policy=policy, device="d", score=score, replicas=1, kept=0
    )


def plan(*assignments: AssignmentView) -> PlanView:
    clusters = sorted({view.cluster for view in assignments})
    return PlanView(
        assignments=list(assignments),
        configurations=[
            ConfigurationView(cluster=name, policy="p", device="d", supply={"gpu": 2}, used={"gpu": 1})
            for name in clusters
        ],
    )


def test_names_fit_into_a_label_and_stay_distinct() -> None:
    long = [f"{'x' * 60}-{number}" for number in range(3)]
    names = {make_name("placement", name) for name in long}
    assert len(names) == 3
    assert all(len(name) <= 63 for name in names)
    assert make_name("placement", "a") == make_name("placement", "a")
    assert "--" not in make_name("placement", f"{'x' * 43}-.-y{'z' * 40}")


def test_workload_on_several_clusters_has_one_placement() -> None:
    plan_view = plan(assignment("w", "c2"), assignment("w", "c1"))
    objects = render("ns", plan_view, {"w": "w-placement"}, LABEL, {"c1": "v1", "c2": "v2"})
    assert [manifest["kind"] for manifest in objects] == [
        "Placement",
        "Placement",
        "PlacementBinding",
        "PlacementBinding",
        "Placement",
    ]
    spec = objects[-1]["spec"]
    assert spec["numberOfClusters"] == 2
    (predicate,) = spec["predicates"]
    expressions = predicate["requiredClusterSelector"]["labelSelector"]["matchExpressions"]
    assert expressions == [{"key": "cluster-name", "operator": "In", "values": ["v1", "v2"]}]
    assert {manifest["metadata"]["annotations"][PLAN_OBJECTS] for manifest in objects} == {"5"}
    assert list(yaml.safe_load_all(dump(objects))) == objects
    assert dump([]) == ""


def test_plan_is_read_from_its_objects() -> None:
    plan_view = plan(assignment("v", "c1"), assignment("w", "c1"), assignment("w", "c2"))
    objects = render("ns", plan_view, {"v": "v-placement", "w": "w-placement"}, LABEL, {"c1": "c1", "c2": "c2"})
    assert read_plan(reversed(objects)) == plan_view
    assert find_current_assignments(plan_view) == {
        "v": [CurrentAssignment("c1", "d")],
        "w": [CurrentAssignment("c1", "d"), CurrentAssignment("c2", "d")],
    }
    for manifest in objects:
        for key in (CONFIGURATION, ASSIGNMENTS):
            if key in manifest["metadata"]["annotations"]:
                manifest["metadata"]["annotations"][key] = "{"
    assert read_plan(objects) == PlanView()


def test_plan_id_depends_on_places_and_not_on_scores() -> None:
    first = compute_plan_id("ns", plan(assignment("w", "c1", 1), assignment("v", "c1")))
    assert first == compute_plan_id("ns", plan(assignment("v", "c1"), assignment("w", "c1", 50)))
    assert first != compute_plan_id("other", plan(assignment("w", "c1"), assignment("v", "c1")))
    assert first != compute_plan_id("ns", plan(assignment("w", "c2"), assignment("v", "c1")))


def test_owned_fields_are_those_of_our_applies() -> None:
    fields = {
        "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
        "f:spec": {"f:predicates": {}, "f:numberOfClusters": {}, "f:gone": {}},
    }
    own_entry = {"manager": "dynamic-scoring-optimizer", "operation": "Apply", "fieldsV1": fields}
    kubectl_entry = {"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:spec": {"f:tolerations": {}}}}
    manifest = {
        "metadata": {"name": "n", "labels": {"a": "1", "b": "2"}, "managedFields": [own_entry, kubectl_entry]},
        "spec": {"predicates": [{"x": 1}], "numberOfClusters": 1, "tolerations": []},
    }
    assert select_owned_fields(manifest) == {
        "metadata": {"labels": {"a": "1"}},
        "spec": {"predicates": [{"x": 1}], "numberOfClusters": 1},
    }
    assert select_owned_fields(json.loads(json.dumps(manifest | {"metadata": {"name": "n"}}))) == {}


def test_kubectl_reads_what_was_planned() -> None:
    """PyYAML writes such a namespace without quotes, and kubectl refuses a number."""
    placement = {"kind": "Placement", "metadata": {"name": "08", "namespace": "1e3", "labels": {"y": "n"}}}
    assert kubeyaml.load(dump([placement])) == placement
    assert dump([]) == ""


@pytest.mark.parametrize(
    "text",
    ["[" * 10_000, '[{"workload": "\\ud800"}]', "null", "{}", '[{"workload": "w", "replicas": -1}]',
     '[{"workload": "w", "cluster": "c", "policy": "p", "device": "d", "score": 1, "replicas": -1, "kept": 0}]'],
)  # fmt: skip
def test_invalid_annotations_are_ignored(text: str) -> None:
    plan_view = read_plan([{"metadata": {"annotations": {ASSIGNMENTS: text}}}])
    assert plan_view == PlanView()
