"""A running hub with scorers that have an expression: delivery, health, and conditions of invalid ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.hub.world import HubHarness


def expression(name: str, text: str, **inputs: str) -> dict[str, Any]:
    scores = [{"scorer": scorer, "as": variable} for variable, scorer in inputs.items()]
    source = {"type": "Scores", "scores": scores} if scores else {"host": "http://p.test", "params": {"query": "up"}}
    return {
        "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
        "kind": "DynamicScorer",
        "metadata": {"name": name, "namespace": "open-cluster-management"},
        "spec": {
            "description": "d",
            "source": source,
            "scoring": {"expression": text, "params": {"name": name, "interval": 30}},
        },
    }


@pytest.fixture
def hub(world: HubHarness) -> HubHarness:
    """A hub with a cluster and an expression that runs."""
    world.config()
    world.cluster("a", labels={"price": "5"})
    world.write("good.yaml", expression("good", "100 * last"))
    world.start()
    world.until(lambda: world.pairs() == ["a/good"])
    return world


def test_expression_and_composite_are_active_and_delivered(hub: HubHarness) -> None:
    hub.write("mix.yaml", expression("mix", "cpu + double(clusterLabels.price)", cpu="good"))
    hub.until(lambda: hub.pairs() == ["a/good", "a/mix"])
    good, mix = hub.summaries("a") or []
    assert (good["expression"], good["sourceEndpoint"]) == ("100 * last", "http://p.test/api/v1/query")
    assert (mix["scores"], mix["clusterLabels"]) == ([{"scorer": "good", "as": "cpu"}], {"price": "5"})
    hub.until(lambda: hub.condition("mix", "Healthy")[:2] == ("True", "ExpressionValid"))
    assert hub.status("mix")["healthStatus"] == "Active"


def test_wrong_expression_is_inactive_until_it_is_corrected(hub: HubHarness) -> None:
    hub.write("good.yaml", expression("good", "100 * lats"))
    hub.until(lambda: hub.condition("good", "Healthy")[:2] == ("False", "ExpressionInvalid"))
    hub.until(lambda: hub.delivered_scorers("a") == [])
    status, reason, message = hub.condition("good", "ConfigSynced")
    assert (status, reason) == ("False", "ExpressionInvalid")
    assert message.startswith("spec.scoring.expression: column 7: there is no variable 'lats'")
    hub.write("good.yaml", expression("good", "100 - last"))
    hub.until(lambda: hub.delivered_scorers("a") == ["good"])
    hub.until(lambda: hub.status("good")["healthStatus"] == "Active")


def test_composites_that_cannot_be_evaluated_name_the_cause_and_leave_others_alone(hub: HubHarness) -> None:
    hub.write("self.yaml", expression("self", "x", x="self"))
    hub.write("orphan.yaml", expression("orphan", "x", x="gone"))
    hub.until(lambda: hub.condition("self", "ConfigSynced")[1] == "InputInvalid")
    hub.until(lambda: hub.condition("orphan", "ConfigSynced")[1] == "InputInvalid")
    assert hub.condition("self", "ConfigSynced")[2] == "spec.source.scores: a circle: self -> self"
    assert "there is no DynamicScorer 'gone'" in hub.condition("orphan", "ConfigSynced")[2]
    assert hub.delivered_scorers("a") == ["good"]


def test_composite_stops_with_its_deleted_input_and_runs_again_with_a_new_one(hub: HubHarness) -> None:
    hub.write("mix.yaml", expression("mix", "x", x="good"))
    hub.until(lambda: hub.delivered_scorers("a") == ["good", "mix"])
    hub.remove("good.yaml")
    hub.until(lambda: hub.delivered_scorers("a") == [])
    hub.until(lambda: hub.condition("mix", "ConfigSynced")[1] == "InputInvalid")
    hub.write("good.yaml", expression("good", "last"))
    hub.until(lambda: hub.delivered_scorers("a") == ["good", "mix"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 +", "column 4: expected a value and not 'the end'"),
        ("100 * labels.node", "column 5: int * string is not possible"),
        ("(" * 1000 + "1" + ")" * 1000, "column 41: more than 40 brackets within one another"),
        ("1" + "+1" * 1000, "the expression has more than 100 levels"),
    ],
)
def test_hostile_expression_has_a_condition_and_leaves_others_alone(hub: HubHarness, text: str, message: str) -> None:
    hub.write("hostile.yaml", expression("hostile", text))
    hub.until(lambda: hub.condition("hostile", "Healthy")[:2] == ("False", "ExpressionInvalid"))
    assert message in hub.condition("hostile", "ConfigSynced")[2]
    assert hub.delivered_scorers("a") == ["good"]


def test_expression_of_100_kb_is_refused_with_its_field(hub: HubHarness) -> None:
    hub.write("hostile.yaml", expression("hostile", "1" + "+1" * 50_000))
    (problem,) = hub.until(hub.problems)
    assert "spec.scoring.expression" in problem
    assert "is longer than 4096 characters" in problem
    assert hub.delivered_scorers("a") == ["good"]
