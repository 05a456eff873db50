"""Secrets of the hub that clusters get: which, where, as what, and why not."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from pydantic import ValidationError

from dsf.api.types import DELIVER_LABEL, MANAGED_BY, MANAGED_BY_LABEL, USABLE_FOR
from dsf.hub.distribute import carries, manifest_work
from dsf.hub.secretdelivery import MAX_SIZE, NO_DELIVERY, Delivery, copy_for
from dsf.hub.summaries import Plan, make_plan
from tests.unit.hub.builders import NOW, cluster, config, scorer
from tests.unit.hub.test_authentications import SOURCE, authentication


def secret(name: str = "fleet", size: int = 4, **labels: str) -> dict[str, Any]:
    """One that clusters may have."""
    metadata = {
        "name": name,
        "namespace": "hub",
        "labels": {DELIVER_LABEL: "true", **labels},
        "annotations": {USABLE_FOR: "thanos.example", "kubectl.kubernetes.io/last-applied-configuration": "t0ken"},
        "uid": "1",
    }
    value = base64.b64encode(b"x" * size).decode()
    return {"kind": "Secret", "metadata": metadata, "type": "Opaque", "data": {"token": value}}


def plan(delivery: Delivery, name: str = "fleet", masks: Any = ()) -> Plan:
    """A scorer that wants the Secret on clusters a and b, and one that wants nothing."""
    found = [scorer("s", source=SOURCE), scorer("other")]
    wants = authentication(secretDelivery=[{"name": name}])
    return make_plan(
        found, config(*masks), [cluster("a"), cluster("b")], NOW, authentications=[wants], delivery=delivery
    )


def test_it_goes_where_its_scorer_goes() -> None:
    found = plan(Delivery.of("hub", [secret()]), masks=[("b", "s")])
    assert (found.delivered("a"), found.delivered("b")) == ({"fleet"}, frozenset())
    assert (found.having("fleet"), found.having("other")) == ({"a"}, set())


@pytest.mark.parametrize(
    ("delivery", "said"),
    [
        (NO_DELIVERY, "this hub delivers no Secrets"),
        (Delivery.of("hub", []), f"is not in namespace hub with the label {DELIVER_LABEL}=true"),
        (Delivery.of("elsewhere", [secret()]), "only ScoringAuthentications in namespace elsewhere"),
        (Delivery.of("hub", [secret(**{MANAGED_BY_LABEL: MANAGED_BY})]), "is the framework's own"),
        (Delivery.of("hub", [secret(size=MAX_SIZE)]), "has more than 32 KiB"),
    ],
)
def test_why_not(delivery: Delivery, said: str) -> None:
    found = plan(delivery)
    obstacle = found.scorers["hub/s"].obstacle
    assert obstacle is not None
    assert obstacle.reason == "SecretNotDelivered"
    assert obstacle.message.startswith("secretDelivery of ScoringAuthentication 'thanos': Secret 'fleet' ")
    assert said in obstacle.message
    # Nobody else is concerned.
    assert [one.name for one in found.running("a")] == ["other"]
    assert found.delivered("a") == frozenset()


def test_secrets_need_room_once_and_older_scorers_come_first() -> None:
    names = [f"secret-{number}" for number in range(8)]
    secrets = [secret(name, size=24_000) for name in names] + [secret("last", size=24_000)]
    many = authentication(secretDelivery=[{"name": name} for name in names])
    metadata = many.metadata.model_copy(update={"name": "one"})
    one = authentication(secretDelivery=[{"name": "last"}]).model_copy(update={"metadata": metadata})
    other = {**SOURCE, "auth": {"authenticationRef": {"name": "one"}}}
    scorers = [
        scorer("a-new", source=other, created="2026-02-01T00:00:00Z"),
        scorer("b-old", source=SOURCE),
        scorer("c-new", source=SOURCE, created="2026-03-01T00:00:00Z"),
        scorer("plain"),
    ]

    def made(*masks: Any, last: int = 24_000) -> Plan:
        delivery = Delivery.of("hub", [*secrets[:-1], secret("last", size=last)])
        clusters = [cluster("x"), cluster("y")]
        return make_plan(
            scorers, config(*masks), clusters, NOW, authentications=[many, one], delivery=delivery, limit=280 * 1024
        )

    found = made(("y", "b-old"), ("y", "c-new"))
    # A Secret that is there already needs no more room.
    assert [one.name for one in found.running("x")] == ["b-old", "c-new", "plain"]
    assert found.delivered("x") == set(names)
    assert [one.name for one in found.running("y")] == ["a-new", "plain"]
    obstacles = found.scorers["hub/a-new"].obstacles
    assert obstacles["x"].reason == "NoRoom"
    assert obstacles.keys() == {"x"}
    assert len(made(last=300).running("x")) == 4


@pytest.mark.parametrize("name", ["dynamic-scoring-agent-credentials", "hub-registry-secret", "../x", ""])
def test_what_is_never_delivered(name: str) -> None:
    with pytest.raises(ValidationError, match="name"):
        authentication(secretDelivery=[{"name": name}])


def test_what_clusters_get() -> None:
    made = copy_for("agents", secret())
    assert made["metadata"] == {"name": "fleet", "namespace": "agents", "annotations": {USABLE_FOR: "thanos.example"}}
    assert made["data"] == secret()["data"]
    assert "t0ken" not in str(made)


def test_a_key_that_is_taken_away_on_the_hub_is_a_difference() -> None:
    both = copy_for("agents", secret())
    both["data"] = {**both["data"], "old": "eA=="}
    before = manifest_work("a", "agents", [], secrets=[both])
    after = manifest_work("a", "agents", [], secrets=[copy_for("agents", secret())])
    assert carries(before, before)
    assert not carries(before, after)
    assert not carries(after, before)


@pytest.mark.parametrize("usable", ["", "thanos.example"])
@pytest.mark.parametrize("namespace", ["hub", "team"])
@pytest.mark.parametrize("where", ["spec", "override"])
def test_another_namespace_cannot_bind_a_delivered_secret_to_its_own_host(
    usable: str, namespace: str, where: str
) -> None:
    known = secret("thanos")
    known["metadata"]["annotations"] = {USABLE_FOR: usable}
    theirs: dict[str, Any] = {"tokenSecretRef": {"name": "thanos", "key": "token"}}
    override = {"clusterSelector": {"matchLabels": {"region": "eu"}}, **theirs}
    spec = theirs if where == "spec" else {"tokenSecretRef": {"name": "own", "key": "token"}, "overrides": [override]}
    bound = authentication(allowedHosts=["https://thanos.example"], **spec)
    metadata = bound.metadata.model_copy(update={"namespace": namespace})
    one = scorer("s", metadata={"namespace": namespace}, source=SOURCE)
    found = make_plan(
        [one],
        config(),
        [cluster("a", labels={"region": "eu"})],
        NOW,
        authentications=[bound.model_copy(update={"metadata": metadata})],
        delivery=Delivery.of("hub", [known]),
    )
    obstacle = found.scorers[f"{namespace}/s"].obstacle
    if usable or namespace == "hub":
        # The agent compares the server with what the Secret says itself.
        assert obstacle is None
    else:
        assert obstacle is not None
        assert obstacle.reason == "SecretNotDelivered"
        assert "'thanos' is delivered for scorers in namespace hub only" in obstacle.message
