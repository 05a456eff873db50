"""ScoringAuthentications: how scorers' summaries use them, and when a scorer is refused."""

from __future__ import annotations

from typing import Any

import pytest

from dsf.api.scoringauthentication import ClusterFacts, ScoringAuthentication
from dsf.api.types import AGENT_SECRETS, CLUSTER_SET_LABEL
from dsf.hub.admission import NameRules
from dsf.hub.conditions import judge_tls_verified
from dsf.hub.plan import FleetPlan, find_differences, make_plan
from tests.unit.hub.builders import GROUP, NOW, cluster, config, refusal, scorer, summaries

SOURCE = {
    "type": "Prometheus",
    "host": "https://thanos.example",
    "params": {"query": "up", "range": 60, "step": 15},
    "auth": {"authenticationRef": {"name": "thanos"}},
}
TOKEN = {"tokenSecretRef": {"name": "thanos", "key": "token"}}


def authentication(**spec: Any) -> ScoringAuthentication:
    """Return a ScoringAuthentication for thanos.example and the paths below it."""
    whole = {"allowedHosts": ["https://thanos.example", "eu.thanos.example"], **TOKEN, **spec}
    metadata = {"name": "thanos", "namespace": "hub"}
    return ScoringAuthentication.from_manifest(
        {"apiVersion": GROUP, "kind": "ScoringAuthentication", "metadata": metadata, "spec": whole}
    )


def plan(*authentications: ScoringAuthentication, clusters: Any = None, **source: Any) -> FleetPlan:
    """Return a plan with one scorer on clusters a and b."""
    fleet = clusters or [cluster("a"), cluster("b", labels={"region": "eu", CLUSTER_SET_LABEL: "europe"})]
    thanos_scorer = scorer("s", source={**SOURCE, **source})
    return make_plan([thanos_scorer], config(), fleet, NOW, authentications=authentications)


def test_summary_carries_source_access_of_its_authentication() -> None:
    (summary,) = summaries(plan(authentication(tls={"serverName": "x"})), "a")
    access = summary.source_access
    assert access is not None
    assert access.methods.token_secret_ref is not None
    assert (access.authentication, access.allowed_hosts) == ("thanos", ("https://thanos.example", "eu.thanos.example"))
    assert access.tls is not None
    # Agents that do not know the binding get no token.
    assert summary.source_endpoint_auth_name == ""


@pytest.mark.parametrize(
    "method",
    [
        {"serviceAccountToken": {"audience": "thanos"}},
        {"azure": {"tenantID": "t", "clientID": "c", "scope": "s"}},
        {"gcp": {"audience": "//iam.googleapis.com/p"}},
        {"aws": {"region": "r", "roleARN": "arn:aws:iam::123456789012:role/r"}},
        {"aws": {"region": "r", "podIdentity": True}},
    ],
    ids=["serviceAccountToken", "azure", "gcp", "aws", "podIdentity"],
)
@pytest.mark.parametrize("location", ["spec", "override"])
def test_identity_of_the_agents_is_for_the_hubs_own_namespace(method: dict[str, Any], location: str) -> None:
    spec = method if location == "spec" else {**TOKEN, "overrides": [{"clusters": ["a"], **method}]}
    whole = {"allowedHosts": ["https://thanos.example"], **spec}
    for namespace in ("team", "hub"):
        metadata = {"name": "thanos", "namespace": namespace}
        bound = ScoringAuthentication.from_manifest(
            {"apiVersion": GROUP, "kind": "ScoringAuthentication", "metadata": metadata, "spec": whole}
        )
        foreign_scorer = scorer("s", source=SOURCE, metadata={"namespace": namespace})
        fleet_plan = make_plan(
            [foreign_scorer], config(), [cluster("a")], NOW, authentications=[bound], names=NameRules(home="hub")
        )
        reason, message = refusal(fleet_plan, f"{namespace}/s")
        if namespace == "hub":
            assert reason == ""
            continue
        assert reason == "InvalidAuthentication"
        assert "uses the identity of the agents, which only those in the hub's own namespace, hub, may" in message


@pytest.mark.parametrize("location", ["source", "sources", "scoring"])
def test_authentication_in_another_namespace_binds_no_secret(location: str) -> None:
    auth = {"authenticationRef": {"name": "thanos"}}
    scoring = {"host": "https://thanos.example", "auth": auth, "params": {"name": "s", "interval": 30}}
    spec: dict[str, Any] = {
        "source": {"source": SOURCE},
        "sources": {"sources": [{"name": "a", **SOURCE}, {"name": "b", **SOURCE}]},
        "scoring": {"source": {**SOURCE, "auth": {"headers": [{"name": "A", "value": "b"}]}}, "scoring": scoring},
    }[location]
    for namespace, is_bound in (("team", False), ("hub", True)):
        metadata = {"name": "thanos", "namespace": namespace}
        whole = {"allowedHosts": ["https://thanos.example"], **TOKEN}
        bound = ScoringAuthentication.from_manifest(
            {"apiVersion": GROUP, "kind": "ScoringAuthentication", "metadata": metadata, "spec": whole}
        )
        fleet_plan = make_plan(
            [scorer("s", **spec, metadata={"namespace": namespace})],
            config(),
            [cluster("a")],
            NOW,
            authentications=[bound],
            names=NameRules(home="hub"),
        )
        (summary,) = summaries(fleet_plan, "a")
        accesses = [access for access in summary.accesses if access.methods.token_secret_ref is not None]
        assert {(access.authentication, access.allowed_hosts) for access in accesses} == (
            {("thanos", ("https://thanos.example",))} if is_bound else {("", ())}
        )


@pytest.mark.parametrize(
    "method",
    [
        {"serviceAccountToken": {"audience": "https://kubernetes.default.svc"}},
        {"azure": {"tenantID": "t", "clientID": "c", "scope": "s", "tokenAudience": "https://kubernetes.default.svc"}},
        {"gcp": {"audience": "//p", "tokenAudience": "https://kubernetes.default.svc.cluster.local"}},
        {"gcp": {"audience": "//kubernetes.default.svc"}},
        {"aws": {"region": "r", "roleARN": "arn:aws:iam::123456789012:role/r", "tokenAudience": "kubernetes"}},
    ],
    ids=["serviceAccountToken", "azure", "gcp", "gcp-default", "aws"],
)
def test_audience_of_api_servers_is_refused(method: dict[str, Any]) -> None:
    whole = {"allowedHosts": ["https://thanos.example"], **method}
    metadata = {"name": "thanos", "namespace": "hub"}
    bound = ScoringAuthentication.from_manifest(
        {"apiVersion": GROUP, "kind": "ScoringAuthentication", "metadata": metadata, "spec": whole}
    )
    reason, message = refusal(plan(bound), "hub/s")
    assert reason == "InvalidAuthentication"
    assert "is an audience of the API servers themselves" in message


def test_missing_authentication_refuses_the_scorer() -> None:
    reason, message = refusal(plan(), "hub/s")
    assert reason == "MissingAuthentication"
    assert message.startswith("spec.source.auth.authenticationRef: there is no ScoringAuthentication 'thanos'")


def test_unreadable_authentication_refuses_only_its_scorers() -> None:
    fleet_plan = make_plan(
        [scorer("s", source=SOURCE), scorer("other")],
        config(),
        [cluster("a")],
        NOW,
        unreadable_authentications={"hub/thanos": "spec: bad"},
    )
    reason, message = refusal(fleet_plan, "hub/s")
    assert reason == "InvalidAuthentication"
    assert message.endswith("ScoringAuthentication 'thanos' has mistakes: spec: bad")
    # The other scorer still runs.
    assert [running_scorer.name for running_scorer in fleet_plan.list_running_scorers("a")] == ["other"]


def test_authentication_refuses_hosts_outside_its_allowed_list() -> None:
    reason, message = refusal(plan(authentication(), host="https://thief.example"), "hub/s")
    assert (reason, "is not for https://thief.example" in message) == ("HostNotAllowed", True)


def test_placeholder_of_a_host_template_is_not_checked_against_allowed_hosts() -> None:
    manifest = {"source": {**SOURCE, "host": "https://${cluster}.thanos.example"}}
    nobody = {"clusterSelector": {"matchLabels": {"region": "mars"}}}
    anywhere = scorer("s", **manifest, **nobody)
    fleet_plan = make_plan([anywhere], config(), [cluster("a")], NOW, authentications=[authentication()])
    assert refusal(fleet_plan, "hub/s") == ("", "")
    # The host of a cluster that runs the scorer is checked.
    fleet_plan = make_plan([scorer("s", **manifest)], config(), [cluster("a")], NOW, authentications=[authentication()])
    assert "is not for https://a.thanos.example" in refusal(fleet_plan, "hub/s")[1]


def test_authentication_with_tls_of_its_scorer_is_refused() -> None:
    reason, message = refusal(plan(authentication(), tls={"insecureSkipVerify": True}), "hub/s")
    assert (reason, message.startswith("spec.source.tls")) == ("InvalidAuthentication", True)


def test_overrides_by_name_set_and_label() -> None:
    for where in (
        {"clusters": ["b"]},
        {"clusterSets": ["europe"]},
        {"clusterSelector": {"matchLabels": {"region": "eu"}}},
    ):
        other = {**where, "host": "http://eu.thanos.example:1", "basic": _basic("eu"), "tls": {"serverName": "eu"}}
        fleet_plan = plan(authentication(overrides=[other, {"clusters": ["b"], "host": "http://eu.thanos.example:2"}]))
        (on_a,), (on_b,) = summaries(fleet_plan, "a"), summaries(fleet_plan, "b")
        assert on_a.source_endpoint == "https://thanos.example/api/v1/query_range"
        assert on_b.source_endpoint == "http://eu.thanos.example:1/api/v1/query_range"
        assert {reference.name for reference in on_a.references} == {"thanos"}
        assert {reference.name for reference in on_b.references} == {"eu"}


def test_override_keeps_fields_that_it_does_not_set() -> None:
    fleet_plan = plan(authentication(overrides=[{"clusters": ["b"], "tls": {"insecureSkipVerify": True}}]))
    (on_b,) = summaries(fleet_plan, "b")
    assert {reference.name for reference in on_b.references} == {"thanos"}
    (scorer_plan,) = fleet_plan.scorers.values()
    condition = judge_tls_verified(scorer_plan, scorer_plan.scorer.status)
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "InsecureSkipVerify")


def test_override_with_a_forbidden_host_excludes_only_its_cluster() -> None:
    fleet_plan = plan(authentication(overrides=[{"clusters": ["b"], "host": "https://thief.example"}]))
    (scorer_plan,) = fleet_plan.scorers.values()
    assert (fleet_plan.list_clusters(scorer_plan), summaries(fleet_plan, "b")) == (["a"], [])
    assert [(name, obstacle.reason) for name, obstacle in scorer_plan.obstacles.items()] == [("b", "HostNotAllowed")]


def test_override_with_a_secret_of_the_agents_excludes_only_its_cluster() -> None:
    """An override is checked on the clusters to which it applies, so that many overrides do not delay each plan."""
    fleet_plan = plan(authentication(overrides=[{"clusters": ["b"], "basic": _basic(min(AGENT_SECRETS))}]))
    (scorer_plan,) = fleet_plan.scorers.values()
    assert fleet_plan.list_clusters(scorer_plan) == ["a"]
    obstacles = {name: obstacle.reason for name, obstacle in scorer_plan.obstacles.items()}
    assert obstacles == {"b": "InvalidTokenSecretRef"}


def test_override_follows_labels_of_a_cluster() -> None:
    by_label = {"clusterSelector": {"matchLabels": {"region": "eu"}}, "tls": {"serverName": "eu"}}
    spec = authentication(overrides=[by_label]).spec
    labels_over_time = [{"region": "eu"}, {"region": "us"}, {"region": "eu"}]
    found = [spec.find_override(ClusterFacts("a", labels)) for labels in labels_over_time]
    assert [override is not None for override in found] == [True, False, True]


def test_override_with_a_query_in_its_host_excludes_only_its_cluster() -> None:
    fleet_plan = plan(authentication(overrides=[{"clusters": ["b"], "host": "http://eu.thanos.example/?a=b"}]))
    (scorer_plan,) = fleet_plan.scorers.values()
    assert fleet_plan.list_clusters(scorer_plan) == ["a"]
    assert scorer_plan.obstacles["b"].reason == "InvalidURL"
    assert scorer_plan.obstacles["b"].message.startswith("an override of ScoringAuthentication 'thanos': ")


def test_authentication_change_affects_its_clusters() -> None:
    before = plan(authentication(overrides=[{"clusters": ["b"], "host": "http://eu.thanos.example"}]))
    after = plan(authentication(overrides=[{"clusters": ["b"], "host": "http://eu.thanos.example:9"}]))
    assert find_differences(before, after).clusters == {"a", "b"}
    moved = plan(
        authentication(
            overrides=[{"clusterSelector": {"matchLabels": {"region": "eu"}}, "host": "http://eu.thanos.example"}]
        ),
        clusters=[cluster("a", labels={"region": "eu"}), cluster("b")],
    )
    assert summaries(moved, "a")[0].source_endpoint.startswith("http://eu.")


def _basic(name: str) -> dict[str, Any]:
    return {"username": {"value": "u"}, "password": {"name": name, "key": "p"}}


def test_authentication_that_is_being_deleted_is_not_called_missing() -> None:
    present_authentication = authentication()
    deleted_metadata = present_authentication.metadata.model_copy(
        update={"deletion_timestamp": NOW, "finalizers": ["example.com/guard"]}
    )
    reason, message = refusal(plan(present_authentication.model_copy(update={"metadata": deleted_metadata})), "hub/s")
    assert reason == "InvalidAuthentication"
    assert "it is being deleted" in message
