"""Inputs of plans on a real API server, and plans read back from it."""

from __future__ import annotations

import pytest

from dsf.errors import ManifestError, UnknownScorerError
from dsf.kube.resources import ADDON_PLACEMENT_SCORES
from dsf.optimizer.errors import PlanConflictError
from dsf.optimizer.manifests import make_name
from dsf.optimizer.scores import DESCRIPTION, DIMENSION_FORMAT
from dsf.optimizer.selector import COMPLIANCE_CLAIM
from dsf.placements.kinds import PLACEMENT_BINDINGS

from ...unit.optimizer import upstream
from .bed import LABEL, PERFORMANCE, POWER, OptimizerHarness


def test_cluster_without_a_unique_label_is_reported(bed: OptimizerHarness) -> None:
    first, second = bed.clusters
    bed.label(first, LABEL, None)
    report = bed.service().propose(bed.params())
    assert report.objective_value == 115
    command = f"kubectl label managedcluster {first} {LABEL}={first}"
    assert any("cannot be applied" in warning and command in warning for warning in report.warnings)
    with pytest.raises(PlanConflictError, match="has no label cluster-name"):
        bed.service().apply(bed.params())
    bed.label(first, LABEL, second)
    with pytest.raises(
        PlanConflictError, match=f"is '{second}', as it is of {second}: a Placement could select either"
    ):
        bed.service().apply(bed.params())
    assert bed.objects() == {}


def test_clusters_are_selected_by_claim_and_by_name(bed: OptimizerHarness) -> None:
    first, second = bed.clusters
    with pytest.raises(PlanConflictError, match=r"has no claim id\.k8s\.io"):
        bed.service(selector="claim:id.k8s.io").apply(bed.params())
    for cluster in bed.clusters:
        claims = [{"name": "id.k8s.io", "value": f"uid-{cluster}"}, {"name": COMPLIANCE_CLAIM, "value": "empty"}]
        bed.session.merge(
            f"/apis/cluster.open-cluster-management.io/v1/managedclusters/{cluster}/status",
            {"status": {"clusterClaims": claims}},
        )
    report = bed.service(selector="claim:id.k8s.io").apply(bed.params())
    assert report.warnings == []
    (predicate,) = bed.objects()["Placement", "app01-placement"]["spec"]["predicates"]
    assert predicate["requiredClusterSelector"] == {
        "claimSelector": {
            "matchExpressions": [
                {"key": "id.k8s.io", "operator": "In", "values": [f"uid-{first}"]},
                {"key": COMPLIANCE_CLAIM, "operator": "In", "values": ["compliant"]},
            ]
        }
    }
    bed.service(selector="name").apply(bed.params())
    name = make_name("placement", second)
    (predicate,) = bed.objects()["Placement", name]["spec"]["predicates"]
    assert predicate["requiredClusterSelector"] == {
        "celSelector": {"celExpressions": [f'managedCluster.metadata.name in ["{second}"]']}
    }


def test_plan_is_applied_only_if_its_id_still_matches(bed: OptimizerHarness) -> None:
    service = bed.service()
    proposal = service.propose(bed.params())
    with pytest.raises(PlanConflictError, match=f"the plan is not {proposal.plan_id} any more"):
        service.apply(bed.params(POWER, planId=proposal.plan_id))
    assert bed.objects() == {}
    assert service.apply(bed.params(planId=proposal.plan_id)).applied


def test_expired_scores_evict_no_workload(bed: OptimizerHarness) -> None:
    service = bed.service()
    bed.score(PERFORMANCE, upstream.PERFORMANCE, valid=-1)
    report = service.apply(bed.params())
    # Without placed workloads there is no loss, so the plan is applied.
    assert (report.status, report.coverage, bed.objects()) == ("Optimal", "NothingPlaced", {})
    bed.score(PERFORMANCE, upstream.PERFORMANCE)
    service.apply(bed.params())
    before = bed.objects()
    bed.score(PERFORMANCE, upstream.PERFORMANCE, valid=-1)
    refusal = "workload mwrs-app01 is placed now and would be removed"
    with pytest.raises(PlanConflictError, match=refusal):
        service.apply(bed.params())
    report = service.propose(bed.params())
    # Upstream's clients test for Optimal, and no plan is better.
    assert (report.status, report.coverage, report.objective_value) == ("Optimal", "NothingPlaced", 0)
    assert {entry.reason for entry in (*report.unplaced, *report.missing_scores)} == {"expired"}
    assert any(f"cannot be applied: {refusal}" in warning for warning in report.warnings)
    assert bed.objects() == before
    assert service.apply(bed.params(POWER)).objective_value == 170


def test_all_missing_objects_are_named_at_once(bed: OptimizerHarness) -> None:
    body = bed.body(
        targetWorkloads=[{"name": "mwrs-app01"}, {"name": "nobody"}],
        clusters=[{"name": "nowhere", "availablePolicies": [{"name": "nothing"}]}],
    )
    with pytest.raises(ManifestError) as caught:
        bed.service().propose(bed.params().model_validate(body))
    assert str(caught.value).split("; ") == [
        "ManagedCluster nowhere does not exist",
        f"ManifestWorkReplicaSet {bed.namespace}/nobody does not exist",
        f"Policy {bed.namespace}/nothing does not exist",
    ]


def test_keep_current_weight_avoids_moves(bed: OptimizerHarness) -> None:
    service = bed.service()
    service.apply(bed.params())
    slightly = {"all": (80, 80), "3g.48gb": (60, 55), "2g.24gb": (62, 57)}
    bed.score(PERFORMANCE, slightly)
    proposal = service.propose(bed.params(keepCurrent=3))
    assert {assignment.device for assignment in proposal.plan.assignments} == {"3g.48gb"}
    assert (proposal.objective_value, proposal.bound) == (115, 121)
    moved = service.propose(bed.params())
    assert {assignment.device for assignment in moved.plan.assignments} == {"2g.24gb"}


def test_weighted_mix_of_scores_selects_the_plan(bed: OptimizerHarness) -> None:
    body = bed.body()
    del body["preference"]
    body["preferences"] = [
        {"addonPlacementScore": PERFORMANCE, "weight": 0.1},
        {"addOnPlacementScore": POWER, "weight": 0.9},
    ]
    report = bed.service().propose(bed.params().model_validate(body))
    assert {assignment.device for assignment in report.plan.assignments} == {"2g.24gb"}
    assert report.objective_value == pytest.approx(0.1 * 25 + 0.9 * 170)


def test_plans_are_read_from_their_objects(bed: OptimizerHarness) -> None:
    report = bed.service().apply(bed.params())
    # A new service has no memory of the plan.
    (plan,) = bed.service().plans(bed.namespace).items
    assert (plan.plan_id, plan.complete) == (report.plan_id, True)
    assert plan.plan == report.plan
    assert plan.applied_at is not None
    assert bed.namespace in [item.namespace for item in bed.service().plans().items]
    bed.session.delete(PLACEMENT_BINDINGS.path(bed.namespace, make_name("binding", bed.clusters[0])))
    (plan,) = bed.service().plans(bed.namespace).items
    assert plan.complete is False


def test_cluster_outside_of_the_bound_sets_is_refused(bed: OptimizerHarness) -> None:
    path = (
        f"/apis/cluster.open-cluster-management.io/v1beta2/namespaces/{bed.namespace}/managedclustersetbindings/global"
    )
    bed.session.delete(path)
    with pytest.raises(PlanConflictError, match="has no ManagedClusterSetBinding"):
        bed.service().apply(bed.params())


def register(bed: OptimizerHarness) -> str:
    """Return a DynamicScorer, which the scores of performance are from; its name."""
    scorer = f"{bed.namespace}-scorer"
    manifest = {
        "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
        "kind": "DynamicScorer",
        "metadata": {"name": scorer, "namespace": bed.namespace},
        "spec": {
            "description": "How fast",
            "configURL": "http://scorer.test/config",
            "configSyncMode": "None",
            "scoreDimensionFormat": "${app};${device}",
            "scoring": {"path": "/s", "params": {"name": "example_performance_score", "interval": 30}},
        },
    }
    bed.session.create(
        f"/apis/dynamic-scoring.open-cluster-management.io/v1alpha1/namespaces/{bed.namespace}/dynamicscorers", manifest
    )
    labels = {"dynamic-scoring.open-cluster-management.io/scorer-name": scorer}
    for cluster in bed.clusters:
        bed.session.merge(ADDON_PLACEMENT_SCORES.path(cluster, PERFORMANCE), {"metadata": {"labels": labels}})
    return scorer


def unregister(bed: OptimizerHarness, scorer: str) -> None:
    """Everybody sees scorers."""
    bed.session.delete(
        f"/apis/dynamic-scoring.open-cluster-management.io/v1alpha1/namespaces/{bed.namespace}/dynamicscorers/{scorer}"
    )


def test_score_name_prefix_of_items_is_removed(bed: OptimizerHarness) -> None:
    scorer = register(bed)
    for cluster in bed.clusters:
        path = ADDON_PLACEMENT_SCORES.path(cluster, PERFORMANCE, "status")
        status = bed.session.get(path)["status"]
        items = [{**score, "name": f"example_performance_score;{score['name']}"} for score in status["scores"]]
        bed.session.merge(path, {"status": {"scores": items}})
    for name in (PERFORMANCE, "example_performance_score"):
        preference = {"addOnPlacementScore": name, "scoreDimensionFormat": "${scoreName};${app};${device}"}
        report = bed.service().propose(bed.params(preference=preference))
        assert report.missing_scores == []
        assert report.objective_value == 115
    unregister(bed, scorer)
    # Without the scorer, the request has only the name in it.
    assert bed.service().propose(bed.params(preference=preference)).objective_value == 115


def test_scores_are_listed_with_their_description(bed: OptimizerHarness) -> None:
    scorer = register(bed)
    service = bed.service()
    score_objects = service.list_scores(bed.clusters[0]).items
    assert [(score_object.metadata["name"], score_object.metadata["namespace"]) for score_object in score_objects] == [
        (PERFORMANCE, bed.clusters[0]),
        (POWER, bed.clusters[0]),
    ]
    assert score_objects[0].metadata["annotations"] == {DESCRIPTION: "How fast", DIMENSION_FORMAT: "${app};${device}"}
    assert not score_objects[0].freshness.expired
    assert 300 < (score_objects[0].freshness.seconds_left or 0) <= 600
    assert len(service.list_scores().items) >= 4
    for name in (scorer, PERFORMANCE, "example_performance_score"):
        view = service.explain_scorer(name)
        assert (view.name, view.description, view.score_object) == (scorer, "How fast", PERFORMANCE)
    # Scores without a label belong to the scorer with their score name: other tests have left some.
    own_score_views = [score_view for score_view in view.scores if score_view.cluster in bed.clusters]
    assert [
        (score_view.cluster, score_view.items, score_view.lowest, score_view.highest) for score_view in own_score_views
    ] == [(cluster, 6, 10, 80) for cluster in bed.clusters]
    with pytest.raises(UnknownScorerError, match=f"there are: .*{scorer}"):
        service.explain_scorer("nobody")
    unregister(bed, scorer)
