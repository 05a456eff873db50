"""The use case by an assistant, over every transport: list scores, propose, apply, list, undo."""

from __future__ import annotations

from typing import Any

import jsonschema

from tests.support.assistant import Assistant

from ..bed import PERFORMANCE, POWER, OptimizerHarness
from .conftest import MEANING

READING = {"list_scores", "explain_scorer", "propose_plan", "list_plans"}
DESTRUCTIVE = {"apply_plan", "reset"}


def test_tools_declare_their_schema_and_hints(near: Assistant) -> None:
    tools = near.tools()
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


def test_documented_use_case_works_by_tools(assistant: Assistant, bed: OptimizerHarness) -> None:
    async def work(client: Any) -> None:
        schemas = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}
        assert set(schemas) == READING | DESTRUCTIVE | {"rescore"}

        async def ask(tool: str, **arguments: Any) -> Any:
            result = await client.call_tool(tool, arguments)
            assert not result.is_error, result.content
            jsonschema.validate(result.structured_content, schemas[tool])
            return result.structured_content

        score_list = await ask("list_scores", cluster=bed.clusters[0])
        performance, power = score_list["scores"]
        assert (performance["score"], power["score"]) == (PERFORMANCE, POWER)
        assert (performance["meaning"], performance["item_names"]) == (MEANING, "${app};${device}")
        assert performance["freshness"]["expired"] is False
        assert 0 < performance["freshness"]["seconds_left"] <= 600
        assert performance["items"]["app01;all"] == 80
        assert list(performance["items"].values()) == sorted(performance["items"].values(), reverse=True)

        scorer = await ask("explain_scorer", name="performance-scorer")
        assert (scorer["description"], scorer["score_object"]) == (MEANING, PERFORMANCE)
        assert {score["cluster"] for score in scorer["scores"]} >= set(bed.clusters)

        proposal = await ask("propose_plan", **bed.body())
        assert (proposal["status"], proposal["objective_value"], proposal["applied"]) == ("Optimal", 115, False)
        assert {workload["device"] for workload in proposal["workloads"]} == {"3g.48gb"}
        assert all(workload["why_not"] and workload["next_best"] for workload in proposal["workloads"])
        assert proposal["output_yaml"] is None
        assert f"planId {proposal['plan_id']}" in proposal["next_step"]
        assert bed.objects() == {}

        applied = await ask("apply_plan", **bed.body(), planId=proposal["plan_id"], includeYaml=True)
        assert (applied["applied"], applied["plan_id"]) == (True, proposal["plan_id"])
        assert "kind: PlacementBinding" in applied["output_yaml"]
        assert bed.bound() == [bed.policy("enable-mig-3g", 0), bed.policy("enable-mig-3g", 1)]
        (plan,) = (await ask("list_plans", namespace=bed.namespace))["items"]
        assert (plan["plan_id"], plan["complete"]) == (applied["plan_id"], True)

        proposal = await ask("propose_plan", **bed.body(POWER))
        assert proposal["objective_value"] == 170
        await ask("apply_plan", **bed.body(POWER), planId=proposal["plan_id"])
        assert bed.bound() == [bed.policy("enable-mig-2g", 0), bed.policy("enable-mig-2g", 1)]

        reset_report = await ask("reset", namespace=bed.namespace)
        assert {deletion["change"] for deletion in reset_report["deleted"]} == {"deleted"}
        assert (await ask("reset", namespace=bed.namespace))["deleted"] == []
        assert (await ask("list_plans", namespace=bed.namespace))["items"] == []

    assistant.run(work)
    assert bed.objects() == {}
