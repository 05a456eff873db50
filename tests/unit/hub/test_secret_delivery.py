"""Delivery of the hub's Secrets to clusters, and the reasons for which one is not delivered."""

from __future__ import annotations

import base64
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from dsf.api.scoringauthentication import DeliveredSecret
from dsf.api.types import DELIVER_LABEL, MANAGED_BY, MANAGED_BY_LABEL, USABLE_FOR
from dsf.backends.compare import work_contains
from dsf.hub.manifestwork import compute_size, make_manifest_work
from dsf.hub.plan import FleetPlan, make_plan
from dsf.hub.secretdelivery import MAX_SIZE, NO_DELIVERY, DeliverableSecrets, make_copy
from tests.unit.hub.builders import NOW, cluster, config, refusal, scorer
from tests.unit.hub.test_authentications import SOURCE, authentication


def secret(name: str = "fleet", size: int = 4, **labels: str) -> dict[str, Any]:
    """Return a Secret that may be delivered to clusters."""
    metadata = {
        "name": name,
        "namespace": "hub",
        "labels": {DELIVER_LABEL: "true", **labels},
        "annotations": {USABLE_FOR: "thanos.example", "kubectl.kubernetes.io/last-applied-configuration": "t0ken"},
        "uid": "1",
    }
    value = base64.b64encode(b"x" * size).decode()
    return {"kind": "Secret", "metadata": metadata, "type": "Opaque", "data": {"token": value}}


def plan(delivery: DeliverableSecrets, name: str = "fleet", masks: Any = ()) -> FleetPlan:
    """Plan a scorer that needs the Secret on clusters a and b, and one that needs none."""
    dynamic_scorers = [scorer("s", source=SOURCE), scorer("other")]
    wants = authentication(secretDelivery=[{"name": name}])
    return make_plan(
        dynamic_scorers, config(*masks), [cluster("a"), cluster("b")], NOW, authentications=[wants], delivery=delivery
    )


def test_secret_is_delivered_where_its_scorer_runs() -> None:
    fleet_plan = plan(DeliverableSecrets.from_manifests("hub", [secret()]), masks=[("b", "s")])
    assert (fleet_plan.list_delivered_secrets("a"), fleet_plan.list_delivered_secrets("b")) == ({"fleet": "fleet"}, {})
    assert (fleet_plan.find_clusters_with_secret("fleet"), fleet_plan.find_clusters_with_secret("other")) == (
        {"a"},
        set(),
    )


@pytest.mark.parametrize(
    ("delivery", "problem"),
    [
        (NO_DELIVERY, "this hub delivers no Secrets"),
        (DeliverableSecrets.from_manifests("hub", []), f"is not in namespace hub with the label {DELIVER_LABEL}=true"),
        (
            DeliverableSecrets.from_manifests("elsewhere", [secret()]),
            "only ScoringAuthentications in namespace elsewhere",
        ),
        (
            DeliverableSecrets.from_manifests("hub", [secret(**{MANAGED_BY_LABEL: MANAGED_BY})]),
            "is the framework's own",
        ),
        (DeliverableSecrets.from_manifests("hub", [secret(size=MAX_SIZE)]), "has more than 32 KiB"),
    ],
)
def test_undeliverable_secret_refuses_only_its_scorer(delivery: DeliverableSecrets, problem: str) -> None:
    fleet_plan = plan(delivery)
    reason, message = refusal(fleet_plan, "hub/s")
    assert reason == "SecretNotDelivered"
    assert message.startswith("secretDelivery of ScoringAuthentication 'thanos': Secret 'fleet' ")
    assert problem in message
    # The other scorer still runs.
    assert [running_scorer.name for running_scorer in fleet_plan.list_running_scorers("a")] == ["other"]
    assert fleet_plan.list_delivered_secrets("a") == {}


def scorer_with_secrets(name: str, created: str, *secrets: dict[str, str]) -> tuple[Any, Any]:
    """Return a scorer and its ScoringAuthentication with these Secrets."""
    scoring_authentication = authentication(secretDelivery=list(secrets))
    metadata = scoring_authentication.metadata.model_copy(update={"name": name})
    source = {**SOURCE, "auth": {"authenticationRef": {"name": name}}}
    return scorer(name, source=source, created=created), scoring_authentication.model_copy(
        update={"metadata": metadata}
    )


def test_room_is_that_of_each_clusters_own_secret() -> None:
    dynamic_scorer, wants = scorer_with_secrets(
        "s", "2026-01-01T00:00:00Z", {"name": "thanos-${cluster}", "targetName": "thanos"}
    )
    delivery = DeliverableSecrets.from_manifests("hub", [secret("thanos-a", 300), secret("thanos-b", 20_000)])
    for names in ("ab", "ba"):
        clusters = [cluster(name) for name in names]
        fleet_plan = make_plan(
            [dynamic_scorer], config(), clusters, NOW, authentications=[wants], delivery=delivery, limit=20 * 1024
        )
        assert fleet_plan.scorers["hub/s"].obstacles.keys() == {"b"}


def test_each_cluster_gets_its_own_under_another_name() -> None:
    dynamic_scorer, wants = scorer_with_secrets(
        "s", "2026-01-01T00:00:00Z", {"name": "thanos-${cluster}", "targetName": "thanos"}
    )
    secrets = [secret("thanos-a"), secret("thanos-b", 20_000), secret("thanos")]
    clusters = [cluster("a"), cluster("b"), cluster("c")]

    def plan_with(*secrets_of_hub: Any) -> FleetPlan:
        delivery = DeliverableSecrets.from_manifests("hub", secrets_of_hub)
        return make_plan([dynamic_scorer], config(), clusters, NOW, authentications=[wants], delivery=delivery)

    fleet_plan = plan_with(*secrets)
    assert [fleet_plan.list_delivered_secrets(name) for name in "abc"] == [
        {"thanos": "thanos-a"},
        {"thanos": "thanos-b"},
        {},
    ]
    assert [fleet_plan.find_clusters_with_secret(name) for name in ("thanos-a", "thanos-b", "thanos")] == [
        {"a"},
        {"b"},
        set(),
    ]
    # The other clusters are not affected.
    obstacle = fleet_plan.scorers["hub/s"].obstacles["c"]
    assert fleet_plan.scorers["hub/s"].obstacles.keys() == {"c"}
    assert obstacle.reason == "SecretNotDelivered"
    assert "Secret 'thanos-c' is not in namespace hub with the label" in obstacle.message
    assert fleet_plan.list_clusters(fleet_plan.scorers["hub/s"]) == ["a", "b"]
    # The planned size covers the manifest that is written.
    for name, cluster_secret in zip("ab", secrets, strict=False):
        size = compute_size(make_copy("x" * 63, cluster_secret, "thanos"))
        assert fleet_plan.scorers["hub/s"].make_load(name).secrets == {"thanos": size}
    assert fleet_plan.scorers["hub/s"].largest_load.secrets["thanos"] > 20_000
    assert not plan_with(*secrets, secret("thanos-c")).scorers["hub/s"].obstacles


@pytest.mark.parametrize("number", [2, 20])
def test_delivery_looks_up_each_secret_a_bounded_number_of_times(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dynamic_scorer, wants = scorer_with_secrets(
        "s", "2026-01-01T00:00:00Z", {"name": "thanos-${cluster}", "targetName": "thanos"}
    )
    clusters = [cluster(f"c{index}") for index in range(number)]
    delivery = DeliverableSecrets.from_manifests("hub", [secret(f"thanos-c{index}") for index in range(number)])
    rendered_names: list[str] = []
    names_on = DeliveredSecret.render_names
    monkeypatch.setattr(
        DeliveredSecret,
        "render_names",
        lambda delivered, name: rendered_names.append(name) or names_on(delivered, name),
    )
    passes: list[None] = []

    class Counted(dict[str, tuple[str, int]]):
        def __iter__(self) -> Any:
            passes.append(None)
            return super().__iter__()

        def items(self) -> Any:
            passes.append(None)
            return super().items()

    delivery = replace(delivery, secrets=Counted(delivery.secrets or {}))
    fleet_plan = make_plan([dynamic_scorer], config(), clusters, NOW, authentications=[wants], delivery=delivery)
    # The number of look-ups does not depend on the number of clusters.
    assert len(passes) <= 1
    assert max(Counter(rendered_names).values()) <= 3
    rendered_names.clear()
    assert [fleet_plan.find_clusters_with_secret(f"thanos-c{index}") for index in range(number)] == [
        {f"c{index}"} for index in range(number)
    ]
    assert rendered_names == []


def test_two_secrets_cannot_have_one_name_on_a_cluster() -> None:
    first = scorer_with_secrets("first", "2026-01-01T00:00:00Z", {"name": "thanos-${cluster}", "targetName": "thanos"})
    same = scorer_with_secrets("same", "2026-03-01T00:00:00Z", {"name": "thanos-${cluster}", "targetName": "thanos"})
    other = scorer_with_secrets("other", "2026-02-01T00:00:00Z", {"name": "other", "targetName": "thanos"})
    both = scorer_with_secrets(
        "both", "2026-01-01T00:00:00Z", {"name": "other"}, {"name": "thanos-a", "targetName": "other"}
    )
    delivery = DeliverableSecrets.from_manifests("hub", [secret("thanos-a"), secret("other")])
    scorers, wants = zip(first, same, other, both, strict=True)
    fleet_plan = make_plan(scorers, config(), [cluster("a")], NOW, authentications=wants, delivery=delivery)
    assert [running_scorer.name for running_scorer in fleet_plan.list_running_scorers("a")] == ["first", "same"]
    assert fleet_plan.list_delivered_secrets("a") == {"thanos": "thanos-a"}
    assert fleet_plan.scorers["hub/other"].obstacles["a"].message == (
        "Secret 'other' would be 'thanos' there, as Secret 'thanos-a' of scorer first is already: set another "
        "targetName in secretDelivery"
    )
    assert "Secret 'thanos-a' and Secret 'other' would both be 'other' there" in refusal(fleet_plan, "hub/both")[1]


@pytest.mark.parametrize(
    ("secrets", "name"),
    [
        ({"name": "own-${cluster}", "targetName": "${cluster}"}, "dynamic-scoring-agent-credentials"),
        ({"name": "${cluster}", "targetName": "token"}, "dynamic-scoring-agent-credentials"),
        ({"name": "a" * 243 + "${cluster}"}, "long-cluster-name"),
    ],
)
def test_invalid_secret_name_on_one_cluster_affects_only_that_cluster(secrets: dict[str, str], name: str) -> None:
    dynamic_scorer, wants = scorer_with_secrets("s", "2026-01-01T00:00:00Z", secrets)
    delivery = DeliverableSecrets.from_manifests(
        "hub", [secret(secrets["name"].replace("${cluster}", at)) for at in ("a", name)]
    )
    clusters = [cluster("a"), cluster(name)]
    fleet_plan = make_plan([dynamic_scorer], config(), clusters, NOW, authentications=[wants], delivery=delivery)
    assert fleet_plan.scorers["hub/s"].obstacles.keys() == {name}
    assert f"has no possible name on cluster {name}: " in fleet_plan.scorers["hub/s"].obstacles[name].message
    assert len(fleet_plan.list_delivered_secrets("a")) == 1


@pytest.mark.parametrize("target", ["theirs", "${cluster}-theirs"])
def test_renamed_secret_cannot_be_bound_by_another_namespace(target: str) -> None:
    hub_secret = secret("thanos")
    hub_secret["metadata"]["annotations"] = {}
    _, wants = scorer_with_secrets("s", "2026-01-01T00:00:00Z", {"name": "thanos", "targetName": target})
    token = {"tokenSecretRef": {"name": target.replace("${cluster}", "a"), "key": "token"}}
    bound = authentication(allowedHosts=["https://thanos.example"], **token)
    bound = bound.model_copy(update={"metadata": bound.metadata.model_copy(update={"namespace": "team"})})
    foreign_scorer = scorer("s", metadata={"namespace": "team"}, source=SOURCE)
    delivery = DeliverableSecrets.from_manifests("hub", [hub_secret])
    fleet_plan = make_plan(
        [foreign_scorer], config(), [cluster("a")], NOW, authentications=[wants, bound], delivery=delivery
    )
    assert refusal(fleet_plan, "team/s")[0] == "SecretNotDelivered"


def test_secrets_need_room_once_and_older_scorers_come_first() -> None:
    names = [f"secret-{number}" for number in range(8)]
    secrets = [secret(name, size=24_000) for name in names] + [secret("last", size=24_000)]
    many = authentication(secretDelivery=[{"name": name} for name in names])
    metadata = many.metadata.model_copy(update={"name": "one"})
    last_authentication = authentication(secretDelivery=[{"name": "last"}]).model_copy(update={"metadata": metadata})
    other = {**SOURCE, "auth": {"authenticationRef": {"name": "one"}}}
    scorers = [
        scorer("a-new", source=other, created="2026-02-01T00:00:00Z"),
        scorer("b-old", source=SOURCE),
        scorer("c-new", source=SOURCE, created="2026-03-01T00:00:00Z"),
        scorer("plain"),
    ]

    def masked_plan(*masks: Any, last: int = 24_000) -> FleetPlan:
        delivery = DeliverableSecrets.from_manifests("hub", [*secrets[:-1], secret("last", size=last)])
        clusters = [cluster("x"), cluster("y")]
        return make_plan(
            scorers,
            config(*masks),
            clusters,
            NOW,
            authentications=[many, last_authentication],
            delivery=delivery,
            limit=280 * 1024,
        )

    fleet_plan = masked_plan(("y", "b-old"), ("y", "c-new"))
    # A Secret that another scorer already delivers needs no further room.
    assert [running_scorer.name for running_scorer in fleet_plan.list_running_scorers("x")] == [
        "b-old",
        "c-new",
        "plain",
    ]
    assert fleet_plan.list_delivered_secrets("x").keys() == set(names)
    assert [running_scorer.name for running_scorer in fleet_plan.list_running_scorers("y")] == ["a-new", "plain"]
    obstacles = fleet_plan.scorers["hub/a-new"].obstacles
    assert obstacles["x"].reason == "NoRoom"
    assert obstacles.keys() == {"x"}
    assert len(masked_plan(last=300).list_running_scorers("x")) == 4


@pytest.mark.parametrize(
    "name", ["dynamic-scoring-agent-credentials", "hub-registry-secret", "../x", "", "${label:x}", "$${cluster}"]
)
def test_reserved_or_invalid_secret_name_is_refused(name: str) -> None:
    for names in ({"name": name}, {"name": "fine", "targetName": name}):
        with pytest.raises(ValidationError, match="ame"):
            authentication(secretDelivery=[names])


def test_delivered_copy_has_data_and_usable_hosts_only() -> None:
    delivered_copy = make_copy("agents", secret())
    assert delivered_copy["metadata"] == {
        "name": "fleet",
        "namespace": "agents",
        "annotations": {USABLE_FOR: "thanos.example"},
    }
    assert delivered_copy["data"] == secret()["data"]
    assert "t0ken" not in str(delivered_copy)


def test_key_removed_on_the_hub_is_a_difference() -> None:
    both = make_copy("agents", secret())
    both["data"] = {**both["data"], "old": "eA=="}
    before = make_manifest_work("a", "agents", [], secrets=[both])
    after = make_manifest_work("a", "agents", [], secrets=[make_copy("agents", secret())])
    assert work_contains(before, before)
    assert not work_contains(before, after)
    assert not work_contains(after, before)


@pytest.mark.parametrize("usable", ["", "thanos.example"])
@pytest.mark.parametrize("namespace", ["hub", "team"])
@pytest.mark.parametrize("where", ["spec", "override"])
def test_delivered_secret_cannot_be_bound_to_the_host_of_another_namespace(
    usable: str, namespace: str, where: str
) -> None:
    hub_secret = secret("thanos")
    hub_secret["metadata"]["annotations"] = {USABLE_FOR: usable}
    foreign_stage: dict[str, Any] = {"tokenSecretRef": {"name": "thanos", "key": "token"}}
    override = {"clusterSelector": {"matchLabels": {"region": "eu"}}, **foreign_stage}
    spec = (
        foreign_stage
        if where == "spec"
        else {"tokenSecretRef": {"name": "own", "key": "token"}, "overrides": [override]}
    )
    bound = authentication(allowedHosts=["https://thanos.example"], **spec)
    metadata = bound.metadata.model_copy(update={"namespace": namespace})
    foreign_scorer = scorer("s", metadata={"namespace": namespace}, source=SOURCE)
    fleet_plan = make_plan(
        [foreign_scorer],
        config(),
        [cluster("a", labels={"region": "eu"})],
        NOW,
        authentications=[bound.model_copy(update={"metadata": metadata})],
        delivery=DeliverableSecrets.from_manifests("hub", [hub_secret]),
    )
    reason, message = refusal(fleet_plan, f"{namespace}/s")
    # Otherwise the agent checks the server against the Secret's annotation.
    is_refused = not usable and namespace != "hub"
    assert reason == ("SecretNotDelivered" if is_refused else "")
    assert ("'thanos' is delivered for scorers in namespace hub only" in message) is is_refused
