"""Manifests are read into a problem or a list of all errors; the two walk-through instances end to end."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from dsf.errors import ManifestError
from dsf.optimizer.labels import get_placement_name, read_configuration, read_problem, read_score, read_workload
from dsf.optimizer.model import CurrentAssignment, Preference
from dsf.optimizer.solve import solve
from dsf.optimizer.views import Coverage, Reason, Status

from . import upstream

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "device", "objective"), [(upstream.PERFORMANCE, "3g.48gb", 115), (upstream.POWER, "2g.24gb", 170)]
)
def test_walk_through_places_both_apps(values: dict[str, tuple[int, int]], device: str, objective: int) -> None:
    scores = upstream.scores("score", values, "2030-01-01T00:05:00Z")
    problem = read_problem(upstream.workloads(), upstream.policies(), scores, [Preference("score")], now=NOW)
    plan = solve(problem)
    assert (plan.status, plan.objective, plan.gap, plan.unplaced) == (Status.OPTIMAL, objective, 0, [])
    assert [(configuration.cluster, configuration.device) for configuration in plan.configurations] == [
        ("cluster1", device),
        ("cluster2", device),
    ]
    assert [(assignment.workload, assignment.cluster) for assignment in plan.assignments] == [
        ("mwrs-app01", "cluster1"),
        ("mwrs-app02", "cluster2"),
    ]
    assert plan.score_gaps == []


def test_both_scores_mixed_and_where_workloads_are_now() -> None:
    scores = upstream.scores("perf", upstream.PERFORMANCE) + upstream.scores("power", upstream.POWER)
    problem = read_problem(
        upstream.workloads(),
        upstream.policies(),
        scores,
        [Preference("perf", 0.5), Preference("power", 0.5)],
        now=NOW,
        keep_current=2,
        current={"mwrs-app01": [CurrentAssignment("cluster2")]},
    )
    plan = solve(problem)
    assert [(assignment.workload, assignment.cluster, assignment.device) for assignment in plan.assignments] == [
        ("mwrs-app01", "cluster2", "2g.24gb"),
        ("mwrs-app02", "cluster1", "3g.48gb"),
    ]
    # app01 scores 45 on both, so the policy of 2g.24gb is first by name; app02 scores 55 on 3g.48gb; staying adds 2.
    assert (plan.score_sum, plan.objective) == (100, 102)


def test_foreign_and_expired_scores_are_not_used() -> None:
    scores = [
        *upstream.scores("score", upstream.POWER, "2030-01-01T00:00:00Z"),
        {"metadata": {"name": "score", "namespace": "elsewhere"}, "status": {"scores": "no list"}},
        {"metadata": {"name": "another", "namespace": "cluster1"}, "status": {"scores": "no list"}},
    ]
    plan = solve(read_problem(upstream.workloads(), upstream.policies(), scores, [Preference("score")], now=NOW))
    assert (plan.status, plan.coverage) == (Status.OPTIMAL, Coverage.NOTHING_PLACED)
    assert {unplaced.reason for unplaced in plan.unplaced} == {Reason.EXPIRED}


def test_score_object_without_status_has_no_items() -> None:
    table = read_score({"kind": "AddOnPlacementScore", "metadata": {"name": "s", "namespace": "c1"}})
    assert (table.items, table.valid_until) == ({}, None)


def test_replicas_go_to_different_clusters() -> None:
    manifest = upstream.workloads()[0]
    manifest["metadata"]["labels"]["resource-request-replicas"] = "2"
    workload = read_workload(manifest)
    assert (workload.replicas, workload.per_cluster, workload.request) == (2, 1, {"gpu": 2})
    assert get_placement_name(manifest) == "app01-placement"


def workload(**labels: Any) -> dict[str, Any]:
    manifest = upstream.workloads()[0]
    manifest["metadata"]["labels"].update(labels)
    return manifest


def remove_label(manifest: dict[str, Any], label: str) -> dict[str, Any]:
    del manifest["metadata"]["labels"][label]
    return manifest


AMOUNT = "allowed is a whole number from 0 to 1000000000, as text"


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (remove_label(workload(), "app"), "label app is missing; it must be the app of the score items"),
        (workload(app=""), "label app is ''; it must be the app of the score items"),
        (
            remove_label(workload(), "resource-request-kind"),
            "label resource-request-kind is missing; it must be the kind",
        ),
        (workload(**{"resource-request-amount": "2.5"}), f"label resource-request-amount is '2.5'; {AMOUNT}"),
        (workload(**{"resource-request-amount": "-1"}), f"label resource-request-amount is '-1'; {AMOUNT}"),
        (workload(**{"resource-request-amount": "1_0"}), f"label resource-request-amount is '1_0'; {AMOUNT}"),
        (workload(**{"resource-request-amount": "٣"}), f"label resource-request-amount is '٣'; {AMOUNT}"),
        (workload(**{"resource-request-amount": 2}), f"label resource-request-amount is 2; {AMOUNT}"),
        (workload(**{"resource-request-replicas": "0"}), "allowed is a whole number from 1 to 10000"),
        ({**workload(), "spec": {}}, "spec.placementRefs[0].name is missing"),
        ({**workload(), "spec": {"placementRefs": [{}]}}, "spec.placementRefs[0].name is missing"),
    ],
)
def test_invalid_workload_is_refused_with_its_reason(manifest: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=re.escape(message)) as caught:
        read_workload(manifest)
    assert str(caught.value).startswith("ManifestWorkReplicaSet default/mwrs-app01: ")


def test_invalid_policy_is_refused_with_all_reasons() -> None:
    policy = upstream.policies()["cluster1"][0]
    policy["metadata"]["labels"] = {"resource-supply-amount": "many"}
    policy["spec"]["disabled"] = True
    with pytest.raises(ManifestError) as caught:
        read_configuration(policy)
    assert str(caught.value).split("; Policy default/policy-disable-mig-cluster1: ") == [
        (
            "Policy default/policy-disable-mig-cluster1: label resource-supply-kind is missing; it must be the kind "
            "of resource it supplies, such as gpu"
        ),
        f"label resource-supply-amount is 'many'; {AMOUNT}",
        "label resource-supply-device is missing; it must be the device of the score items, such as 3g.48gb",
        "spec.disabled is true; enable it or leave it out of availablePolicies",
    ]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (
            {"scores": [{"name": "a", "value": 101}]},
            "status.scores[0] is {'name': 'a', 'value': 101}; allowed is a",
        ),
        ({"scores": [{"name": "a", "value": True}]}, "a whole number from -100 to 100"),
        ({"scores": ["a"]}, "status.scores[0] is 'a'"),
        ({"validUntil": "tomorrow"}, "status.validUntil is 'tomorrow'; allowed is an RFC 3339 time"),
        ({"validUntil": "2030-01-01T00:00:00"}, "status.validUntil is '2030-01-01T00:00:00'"),
        ({"validUntil": 5}, "status.validUntil is 5"),
    ],
)
def test_invalid_score_is_refused_with_its_reason(status: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=re.escape(message)):
        read_score({"metadata": {"name": "s", "namespace": "c1"}, "status": status})


def test_all_errors_are_reported_together() -> None:
    workloads = [remove_label(workload(), "app"), {"kind": "Deployment", "metadata": {"name": "d"}}, {}]
    policies = upstream.policies()
    policies["cluster2"][1]["metadata"]["labels"]["resource-supply-amount"] = ""
    policies["cluster1"].append(policies["cluster1"][0])
    with pytest.raises(ManifestError) as caught:
        read_problem(workloads, policies, [], [Preference("s")], now=NOW)
    text = str(caught.value)
    assert "mwrs-app01: label app is missing" in text
    assert "Deployment d is not a ManifestWorkReplicaSet" in text
    assert "a ManifestWorkReplicaSet has no metadata.name" in text
    assert "Policy default/policy-enable-mig-2g-cluster2: label resource-supply-amount is ''" in text
    assert "configuration of cluster cluster1 named more than once: policy-disable-mig-cluster1" in text
