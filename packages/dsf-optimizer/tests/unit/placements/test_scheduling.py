"""The rules of OCM's scheduler beyond random fleets: errors, limits, effects of its own response."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from dsf.errors import HttpError
from dsf.placements.explanation import explain
from dsf.placements.reader import parse_scheduler_response
from dsf.placements.scheduling import SchedulerResult, ScoreKey, Situation, decide_placement

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def cluster(name: str, **parts: Any) -> dict[str, Any]:
    labels = {"cluster.open-cluster-management.io/clusterset": "edge"} | parts.pop("labels", {})
    return {"metadata": {"name": name, "labels": labels}} | parts


def situation(spec: dict[str, Any], *clusters: dict[str, Any], **parts: Any) -> Situation:
    values: dict[str, Any] = {
        "placement": {"metadata": {"name": "p", "namespace": "n"}, "spec": spec},
        "decided": frozenset(),
        "other_decision_counts": {},
        "clusters": {
            cluster_manifest["metadata"]["name"]: cluster_manifest
            for cluster_manifest in clusters or (cluster("a"), cluster("b"), cluster("c"))
        },
        "cluster_sets": {"edge": {"metadata": {"name": "edge"}, "spec": {}}},
        "scores": {},
        "now": NOW,
    }
    return Situation(**(values | parts))


def addon(weight: int = 1, score: str = "x") -> dict[str, Any]:
    return {"weight": weight, "scoreCoordinate": {"type": "AddOn", "addOn": {"resourceName": "r", "scoreName": score}}}


def policy(*configurations: dict[str, Any], mode: str = "Exact") -> dict[str, Any]:
    return {"prioritizerPolicy": {"mode": mode, "configurations": list(configurations)}}


def predicates(selector: str, operator: str, *values: str) -> dict[str, Any]:
    """Return two predicates: the first fits every cluster, the second has this requirement."""
    requirement = {"key": "zone", "operator": operator} | ({"values": list(values)} if values else {})
    return {
        "predicates": [
            {"requiredClusterSelector": {"labelSelector": {}}},
            {"requiredClusterSelector": {selector: {"matchExpressions": [requirement]}}},
        ]
    }


def score(value: int, valid_until: str | None = None) -> dict[str, Any]:
    return {"status": {"scores": [{"name": "x", "value": value}], "validUntil": valid_until}}


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (policy(mode="Other"), "incorrect prioritizer policy mode"),
        (policy({"weight": 1}), "scoreCoordinate field is required"),
        (policy({"scoreCoordinate": {"type": "AddOn"}}), "addOn should not be empty"),
        (policy({"scoreCoordinate": {"type": "BuiltIn", "builtIn": "Best"}}), "incorrect builtin prioritizer: Best"),
        (predicates("labelSelector", "Equals", "eu"), "the operator 'Equals', which there is not"),
        (predicates("labelSelector", "In"), "the operator In without values"),
        (predicates("claimSelector", "Exists", "eu"), "a claimSelector has the operator Exists with values"),
        ({"tolerations": [{"operator": "Equal", "value": "x"}]}, "needs the operator Exists"),
        ({"tolerations": [{"key": "k", "operator": "Exists", "value": "x"}]}, "may have no value"),
    ],
)
def test_misconfigured_placement_makes_no_decision(spec: dict[str, Any], problem: str) -> None:
    view = explain(situation(spec))
    assert problem in view.problem
    assert (view.chosen, view.ranking) == ([], [])


def test_default_prioritizers_are_steady_and_balance() -> None:
    outcome = decide_placement(
        situation({"numberOfClusters": 1}, decided=frozenset("b"), other_decision_counts={"a": 2, "b": 1})
    )
    assert outcome.totals == {"a": -100, "b": 100, "c": 100}
    assert outcome.chosen == ["b"]


def test_two_of_one_score_both_count_and_the_last_of_a_builtin() -> None:
    spec = policy(
        *(addon(2), addon(3)),
        {"weight": 5, "scoreCoordinate": {"type": "BuiltIn", "builtIn": "Steady"}},
        {"weight": 0, "scoreCoordinate": {"type": "BuiltIn", "builtIn": "Steady"}},
    )
    outcome = decide_placement(situation(spec, decided=frozenset("c"), scores={("b", "r"): score(10)}))
    assert outcome.totals == {"a": 0, "b": 50, "c": 0}


def test_missing_score_counts_0_and_beats_negative_scores() -> None:
    scores = {("a", "r"): score(-5), ("b", "r"): score(90, "2026-05-31T23:59:59Z"), ("d", "r"): {"status": {}}}
    clusters = [cluster(name) for name in "abcd"]
    view = explain(
        situation(policy(addon()) | {"numberOfClusters": 3}, *clusters, scores=scores, decided=frozenset("b"))
    )
    assert [(ranked.cluster, ranked.cells[0].value, ranked.cells[0].standing) for ranked in view.ranking] == [
        ("b", 0, "expired"),
        ("c", 0, "missing"),
        ("d", 0, "no-item"),
        ("a", -5, "counted"),
    ]
    assert [ranked.margin for ranked in view.ranking] == [4, 4, 4, -5]
    assert any("counts 0 on 3 of 4 clusters: b, c, d" in note for note in view.notes)
    assert any("a score has expired" in note for note in view.notes)


def test_hypothetical_score_overrides_the_stored_one() -> None:
    placement_situation = situation(policy(addon()) | {"numberOfClusters": 1}, scores={("a", "r"): score(5)})
    hypothetical_scores: dict[ScoreKey, int | None] = {ScoreKey("b", "r", "x"): 6}
    assert decide_placement(placement_situation, hypothetical_scores=hypothetical_scores).chosen == ["b"]
    assert decide_placement(placement_situation, hypothetical_scores={ScoreKey("b", "r", "y"): 6}).chosen == ["a"]
    assert decide_placement(
        placement_situation, hypothetical_scores={ScoreKey("a", "r", "x"): None, ScoreKey("c", "r", "x"): 1}
    ).chosen == ["c"]


def test_cel_counts_as_met_without_an_answer_of_ocm() -> None:
    spec = {"predicates": [{"requiredClusterSelector": {"celSelector": {"celExpressions": ["false"]}}}]}
    view = explain(situation(spec))
    assert len(view.ranking) == 3
    [note] = [note for note in view.notes if "CEL" in note]
    assert note.endswith("the ranking includes the clusters that they exclude")
    explanation = explain(situation(spec), scheduler_result=SchedulerResult(frozenset("b"), {}))
    assert [ranked.cluster for ranked in explanation.ranking] == ["b"]
    assert {excluded.stage for excluded in explanation.left_out} == {"filter"}
    assert explanation.source == "ocm"
    assert not any("CEL" in note for note in explanation.notes)


def cel(*expressions: str) -> dict[str, Any]:
    return {"predicates": [{"requiredClusterSelector": {"celSelector": {"celExpressions": list(expressions)}}}]}


EXISTS = 'managedCluster.scores("r").exists(e, e.name == "x" && e.value > 0)'


@pytest.mark.parametrize(
    ("decided", "number", "agrees"),
    [
        # CEL may have excluded the other clusters.
        ("b", None, None),
        ("", None, None),
        ("bc", 2, None),
        ("b", 2, None),
        ("abc", None, True),
        # CEL cannot have added a cluster, and the response exceeds the requested number.
        ("bd", None, False),
        ("abc", 2, False),
    ],
)
def test_cel_makes_decisions_about_other_clusters_uncertain(
    decided: str, number: int | None, agrees: bool | None
) -> None:
    spec = cel(EXISTS) | policy(addon(0)) | ({} if number is None else {"numberOfClusters": number})
    view = explain(situation(spec, decided=frozenset(decided)))
    assert view.agrees is agrees
    assert any("OCM has not evaluated it" in note for note in view.notes) is (agrees is False)
    assert any("is unknown" in note for note in view.notes) is (agrees is None)


@pytest.mark.parametrize(
    ("expressions", "configurations", "unwatched"),
    [
        ([EXISTS], (), "r"),
        (["managedCluster.scores('r').size() > 0"], (), "r"),
        ([EXISTS, "managedCluster.scores( 'b' ).size() > 0"], (), "b, r"),
        ([EXISTS], (addon(0),), ""),
        ([EXISTS], (addon(3, "y"),), ""),
        (['"scores" in managedCluster.metadata.labels'], (), ""),
    ],
)
def test_scores_that_only_cel_reads_are_named(
    expressions: list[str], configurations: tuple[Any, ...], unwatched: str
) -> None:
    notes = explain(situation(cel(*expressions) | policy(*configurations))).notes
    text = f"OCM does not evaluate it again when {unwatched} changes"
    assert any(note.startswith(text) for note in notes) is bool(unwatched)
    assert any("does not evaluate it again" in note for note in notes) is bool(unwatched)


def test_expired_scores_that_cel_reads_are_named() -> None:
    scores = {
        ("a", "r"): score(1),
        ("b", "r"): score(2, "2026-05-31T23:59:59Z"),
        ("c", "q"): score(2, "2026-05-31T23:59:59Z"),
    }
    notes = explain(situation(cel(EXISTS), scores=scores)).notes
    assert [note for note in notes if "validUntil" in note] == [
        "CEL expressions ignore validUntil: they read expired scores of b as valid"
    ]


def test_scheduler_answer_is_ignored_for_relative_scores() -> None:
    amounts = {"allocatable": {"cpu": "1"}, "capacity": {"cpu": "1"}}
    larger = {"allocatable": {"cpu": "2"}, "capacity": {"cpu": "2"}}
    spec = policy({"weight": 1, "scoreCoordinate": {"type": "BuiltIn", "builtIn": "ResourceAllocatableCPU"}}, addon())
    clusters = [cluster("a", status=amounts), cluster("b", status=larger)]
    scheduler_result = SchedulerResult(
        frozenset(("a", "b", "elsewhere")),
        {("ResourceAllocatableCPU", 1): {"a": -7, "b": 7}, ("AddOn/r/x", 1): {"a": 3, "b": 4}},
    )
    assert decide_placement(situation(spec, *clusters), scheduler_result=scheduler_result).totals == {
        "a": -97,
        "b": 104,
    }


def test_unbound_or_deleted_cluster_is_excluded() -> None:
    clusters = [
        cluster("a"),
        cluster("b", labels={"cluster.open-cluster-management.io/clusterset": "other"}),
        {"metadata": {"name": "c", "labels": cluster("c")["metadata"]["labels"], "deletionTimestamp": "x"}},
    ]
    outcome = decide_placement(situation({}, *clusters))
    assert outcome.chosen == ["a"]
    assert "bound to its namespace: edge" in outcome.left_out["b"][1]
    assert outcome.left_out["c"][1] == "it is being deleted"


@pytest.mark.parametrize("selector", [None, {}])
def test_cluster_set_selects_by_labels(selector: dict[str, Any] | None) -> None:
    """Follows Kubernetes: no selector selects nothing, an empty one everything."""
    by_labels = {"selectorType": "LabelSelector"} | ({} if selector is None else {"labelSelector": selector})
    sets = {"s": {"metadata": {"name": "s"}, "spec": {"clusterSelector": by_labels}}}
    assert decide_placement(situation({}, cluster_sets=sets)).chosen == ([] if selector is None else ["a", "b", "c"])


@pytest.mark.parametrize("name", ["filteredPiplieResults", "filteredPipelineResults"])
def test_scheduler_answers_before_and_since_ocm_1_3_are_parsed(name: str) -> None:
    filters = [{"name": "Predicate", "filteredClusters": ["a", "b"]}, {"name": "All", "filteredClusters": ["a"]}]
    assert parse_scheduler_response(json.dumps({name: filters}).encode()).passed == {"a"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"error": "placement x not found"}',
        b'{"prioritizeResults": [{}]}',
        b'{"prioritizeResults": []}',
    ],
)
def test_invalid_scheduler_answer_is_an_error(body: bytes) -> None:
    with pytest.raises(HttpError):
        parse_scheduler_response(body)


@pytest.mark.parametrize(
    ("seconds", "is_chosen"), [(5, False), (3600, True), (999_999_999_999, True), (-(10**12), False)]
)
def test_taint_is_tolerated_for_its_seconds(seconds: int, is_chosen: bool) -> None:
    taint = {"key": "k", "effect": "NoSelect", "timeAdded": "2026-05-31T23:59:00Z"}
    tolerations = [{"key": "k", "operator": "Exists", "tolerationSeconds": seconds}]
    view = explain(situation({"tolerations": tolerations}, cluster("a", spec={"taints": [taint]})))
    assert (view.chosen == ["a"]) is is_chosen
