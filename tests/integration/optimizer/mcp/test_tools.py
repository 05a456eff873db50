"""The use case by an assistant: look at scores, propose, apply, look, undo; over every transport."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from dsf.kube.resources import ADDON_PLACEMENT_SCORES
from tests.integration.optimizer.bed import PERFORMANCE, POWER, Bed
from tests.integration.optimizer.mcp.assistant import Assistant
from tests.integration.optimizer.mcp.conftest import MEANING

pytestmark = pytest.mark.xdist_group("optimizer")

READING = {"list_scores", "explain_scorer", "propose_plan", "list_plans"}
DESTRUCTIVE = {"apply_plan", "reset"}


def arguments(bed: Bed, score: str = PERFORMANCE, **more: Any) -> dict[str, Any]:
    """What the person who asks gives: the body of the HTTP API."""
    return bed.body(score, **more)


def test_tools_say_what_they_are(assistant: Assistant) -> None:
    tools = assistant.tools()
    assert set(tools) == READING | DESTRUCTIVE | {"rescore"}
    for name, tool in tools.items():
        assert tool.title
        assert len(tool.description or "") > 100
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is (name in READING)
        assert tool.annotations.destructive_hint is (name in DESTRUCTIVE)
        assert tool.annotations.idempotent_hint is (name != "rescore")
        jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        assert tool.input_schema["type"] == "object"
        assert tool.input_schema["additionalProperties"] is False
        assert tool.output_schema is not None
        jsonschema.Draft202012Validator.check_schema(tool.output_schema)
    assert "planId" in tools["apply_plan"].input_schema["required"]
    assert "dryRun" not in tools["apply_plan"].input_schema["properties"]


def test_the_use_case(assistant: Assistant, bed: Bed) -> None:
    async def work(client: Any) -> None:
        schemas = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}

        async def ask(tool: str, **given: Any) -> Any:
            result = await client.call_tool(tool, given)
            assert not result.is_error, result.content
            jsonschema.validate(result.structured_content, schemas[tool])
            return result.structured_content

        found = await ask("list_scores", cluster=bed.clusters[0])
        performance, power = found["scores"]
        assert (performance["score"], power["score"]) == (PERFORMANCE, POWER)
        assert (performance["meaning"], performance["item_names"]) == (MEANING, "${app};${device}")
        assert performance["freshness"]["expired"] is False
        assert 0 < performance["freshness"]["seconds_left"] <= 600
        assert performance["items"]["app01;all"] == 80
        assert list(performance["items"].values()) == sorted(performance["items"].values(), reverse=True)

        proposal = await ask("propose_plan", **arguments(bed))
        assert (proposal["status"], proposal["objective_value"], proposal["applied"]) == ("Optimal", 115, False)
        assert {one["device"] for one in proposal["workloads"]} == {"3g.48gb"}
        assert all(one["why_not"] and one["next_best"] for one in proposal["workloads"])
        assert proposal["output_yaml"] is None
        assert f"planId {proposal['plan_id']}" in proposal["next_step"]
        assert bed.objects() == {}

        done = await ask("apply_plan", **arguments(bed), planId=proposal["plan_id"], includeYaml=True)
        assert (done["applied"], done["plan_id"]) == (True, proposal["plan_id"])
        assert "kind: PlacementBinding" in done["output_yaml"]
        assert bed.bound() == [bed.policy("enable-mig-3g", 0), bed.policy("enable-mig-3g", 1)]
        (plan,) = (await ask("list_plans", namespace=bed.namespace))["items"]
        assert (plan["plan_id"], plan["complete"]) == (done["plan_id"], True)

        proposal = await ask("propose_plan", **arguments(bed, POWER))
        assert proposal["objective_value"] == 170
        await ask("apply_plan", **arguments(bed, POWER), planId=proposal["plan_id"])
        assert bed.bound() == [bed.policy("enable-mig-2g", 0), bed.policy("enable-mig-2g", 1)]

        gone = await ask("reset", namespace=bed.namespace)
        assert {one["change"] for one in gone["deleted"]} == {"deleted"}
        assert (await ask("reset", namespace=bed.namespace))["deleted"] == []
        assert (await ask("list_plans", namespace=bed.namespace))["items"] == []

    assistant.run(work)
    assert bed.objects() == {}


def test_a_plan_that_cannot_be_applied_says_so_before(near: Assistant, bed: Bed) -> None:
    bed.label(bed.clusters[0], "cluster-name", None)
    proposal = near.ask("propose_plan", **arguments(bed))
    assert "this plan cannot be applied" in proposal["next_step"]
    assert any("cluster-name" in warning for warning in proposal["warnings"])
    assert "the plan cannot be applied: " in near.problem("apply_plan", **arguments(bed), planId=proposal["plan_id"])
    assert bed.objects() == {}


def test_scores_of_many_items_are_cut(near: Assistant, bed: Bed) -> None:
    items = [{"name": f"node-{number}", "value": number % 100} for number in range(500)]
    path = ADDON_PLACEMENT_SCORES.path(bed.clusters[0], POWER, "status")
    bed.session.merge(path, {"status": {"scores": items}})
    (score,) = near.ask("list_scores", cluster=bed.clusters[0], score=POWER)["scores"]
    assert (len(score["items"]), score["more_items"]) == (30, 470)
    assert set(score["items"].values()) <= set(range(93, 100))
    (score,) = near.ask("list_scores", cluster=bed.clusters[0], score=POWER, maxItems=1000)["scores"]
    assert (len(score["items"]), score["more_items"]) == (500, 0)


def test_a_scorer_is_explained_by_its_name_or_that_of_its_scores(near: Assistant, bed: Bed) -> None:
    by_name = near.ask("explain_scorer", name="performance-scorer")
    assert by_name == near.ask("explain_scorer", name=PERFORMANCE) | {"scores": by_name["scores"]}
    assert (by_name["description"], by_name["score_object"]) == (MEANING, PERFORMANCE)
    assert {one["cluster"] for one in by_name["scores"]} >= set(bed.clusters)
