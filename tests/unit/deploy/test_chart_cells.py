"""Several releases of the chart side by side, one for each cell."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsf.backends.kube_claims import CLAIMS_NAME
from dsf.backends.kube_election import LEASE_NAME
from dsf.cells import Cell
from tests.unit.deploy import chart

CELLS = [{"name": "a", "clusterSets": ["gpu"]}, {"name": "b"}]
FIRST: chart.Values = {"cell": {"name": "a", "cells": CELLS}}
SECOND: chart.Values = {
    "cell": {"name": "b", "cells": CELLS, "objectsNamespace": chart.NAMESPACE},
    "hubSetting": {"namespace": "cell-b"},
    "signing": {"existingSecret": "copied"},
    "optimizer": {"enabled": True},
}


def _env(objects: list[chart.Object], component: str) -> dict[str, Any]:
    deployment = chart.one(objects, "Deployment", f"dynamic-scoring-{component}")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value") for one in container["env"]}


def _names(objects: list[chart.Object]) -> set[tuple[str, str, str]]:
    return {(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]) for one in objects}


def test_every_process_knows_its_cell_and_the_rule() -> None:
    for values, name in ((FIRST, "a"), (SECOND, "b")):
        objects = chart.render(values)
        for component in ("hub", "beat", "results", "exporter", "web"):
            env = _env(objects, component)
            assert env["DSF_CELL"] == name
            assert [Cell.model_validate(one) for one in json.loads(env["DSF_CELLS"])] == [
                Cell(name="a", clusterSets=("gpu",)),
                Cell(name="b"),
            ]
            assert env["DSF_NAMESPACE"] == chart.NAMESPACE
    assert _env(objects, "hub")["DSF_AGENT_REDIS_URL"] == "rediss://dynamic-scoring-redis.cell-b.svc:6379/0"
    without = chart.render({})
    assert not [name for name in _env(without, "hub") if name.startswith(("DSF_CELL", "DSF_AGENT_REDIS"))]


def test_two_releases_have_no_object_in_common_and_one_has_what_there_is_once() -> None:
    first, second = chart.render(FIRST), chart.render(SECOND)
    assert not _names(first) & _names(second)
    once = {"AddOnTemplate", "ClusterManagementAddOn", "DynamicScoringConfig"}
    assert {one["kind"] for one in first} >= once
    assert not {one["kind"] for one in second} & once
    # A hub without cells becomes the first of several: nothing of it gets another name.
    assert _names(chart.render({})) == _names(first)


def test_rights_of_a_cell() -> None:
    objects = chart.render(SECOND)
    role = chart.one(objects, "Role", "dynamic-scoring-hub-b")
    assert role["metadata"]["namespace"] == chart.NAMESPACE
    named = [rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule]
    assert named == [[f"{LEASE_NAME}-b"], [CLAIMS_NAME]]
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        binding = chart.one(objects, kind, "dynamic-scoring-hub-b")
        assert binding["roleRef"]["name"] == "dynamic-scoring-hub-b"
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "dynamic-scoring-hub", "namespace": "cell-b"}]
    # Whose a score is must be read before it is removed.
    for name in ("dynamic-scoring-hub-b", "dynamic-scoring-results-b"):
        rules = chart.one(objects, "ClusterRole", name)["rules"]
        [scores] = [rule for rule in rules if rule["resources"] == ["addonplacementscores"]]
        assert {"get", "delete"} <= set(scores["verbs"])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"cell": {"name": "c", "cells": CELLS}}, "cell.name: c is not in cell.cells"),
        (
            {"cell": {"name": "b", "cells": CELLS}, "signing": {"existingSecret": "x"}},
            "cell.objectsNamespace: required",
        ),
        ({"cell": {"name": "b", "cells": CELLS, "objectsNamespace": "x"}}, "signing.existingSecret: required"),
        ({"signing": {"existingSecret": "dynamic-scoring-hub-signing"}}, "signing.existingSecret: .* the chart's own"),
        ({"flower": {"existingSecret": "dynamic-scoring-flower"}}, "flower.existingSecret: .* the chart's own"),
    ],
)
def test_what_is_missing_is_said(values: chart.Values, words: str) -> None:
    with pytest.raises(chart.RenderError, match=words):
        chart.render(values)


def test_alerts_of_a_cell_are_about_its_own_processes() -> None:
    alerts = {"monitoring": {"prometheusRule": {"enabled": True}}}
    keda = {"results": {"keda": {"enabled": True, "prometheusAddress": "http://prometheus:9090"}}}

    def expressions(values: chart.Values) -> list[str]:
        objects = chart.render(alerts | keda | values)
        [rules] = chart.of_kind(objects, "PrometheusRule")
        [scaled] = chart.of_kind(objects, "ScaledObject")
        found = [rule for group in rules["spec"]["groups"] for rule in group["rules"]]
        wanted = ("DynamicScoringBlind", "DynamicScoringHubAway")
        queries = [rule["expr"] for rule in found if rule.get("alert") in wanted]
        return [*queries, scaled["spec"]["triggers"][0]["metadata"]["query"]]

    assert not any("namespace" in query for query in expressions({}))
    for query in expressions({"cell": {"name": "a", "cells": CELLS}}):
        selectors = query.count("dynamic_scoring_")
        assert query.count(f'namespace="{chart.NAMESPACE}"') == selectors
