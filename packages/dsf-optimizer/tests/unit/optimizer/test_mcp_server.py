"""The server over a scripted service, called by the official client without a transport."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio
import jsonschema
import pytest
import redis

from dsf.optimizer.errors import ApplyError
from dsf.optimizer.mcp_views import MAX_LISTED
from dsf.optimizer.views import (
    AppliedPlan,
    AssignmentView,
    ChangeView,
    ClusterScoreView,
    ExplanationView,
    Freshness,
    OptionView,
    PlanList,
    PlanReport,
    PlanView,
    ResetReport,
    ScoreList,
    ScoreObject,
    ScorerView,
)

if TYPE_CHECKING:
    from mcp.types import CallToolResult

FRESH = Freshness(updated_at=datetime(2026, 1, 1, tzinfo=UTC), valid_until=None, expired=False)
BODY: dict[str, Any] = {
    "namespace": "default",
    "clusters": [],
    "targetWorkloads": [],
    "preference": {"addOnPlacementScore": "speed"},
}


class Service:
    """Returns results of the function with the method's name, and records calls."""

    def __init__(self, **answers: Callable[..., Any]) -> None:
        self._answers = answers
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def method(*arguments: Any) -> Any:
            self.calls.append((name, *arguments))
            return self._answers[name](*arguments)

        return method


def make_failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def call(service: Any, tool: str, **arguments: Any) -> CallToolResult:
    # Here, because all test processes load this module and one runs its tests.
    from mcp.client import Client

    from dsf.optimizer.mcp import make_server
    from dsf.optimizer.mcp_tools import TOOLS

    async def work() -> CallToolResult:
        async with Client(make_server(service)) as client:
            return await client.call_tool(tool, arguments)

    result = anyio.run(work)
    if not result.is_error:
        jsonschema.validate(result.structured_content, TOOLS[tool].response.model_json_schema(mode="serialization"))
    return result


def text(result: CallToolResult) -> str:
    return str(result.content[0].text)  # type: ignore[union-attr]


def report(**fields: Any) -> PlanReport:
    values = {"status": "Optimal", "objective_value": 1, "output_yaml": "kind: Placement\n", "plan": PlanView()}
    rest = {
        "coverage": "AllPlaced",
        "gap": 0,
        "bound": 1,
        "plan_id": "abc",
        "namespace": "default",
        "applied": False,
        "seconds": 0.1,
    }
    return PlanReport(**(values | rest | fields))  # type: ignore[arg-type]


def test_crash_reveals_no_details() -> None:
    result = call(Service(plans=make_failing(RuntimeError("password is hunter2"))), "list_plans")
    assert result.is_error
    assert text(result) == "an internal error of the optimiser; see its log"


def test_errors_that_say_what_to_do_are_passed_on() -> None:
    result = call(
        Service(reset=make_failing(ApplyError("cannot delete x: 403; grant it"))), "reset", namespace="default"
    )
    assert result.is_error
    assert text(result) == "cannot delete x: 403; grant it"


def test_redis_is_named_when_it_cannot_be_used() -> None:
    unreachable_redis = make_failing(redis.ConnectionError("Error 111 connecting to redis:6379.\nRefused."))
    message = text(call(Service(rescore=unreachable_redis), "rescore", scorer="a"))
    assert (
        message == "the hub's Redis cannot be used (Error 111 connecting to redis:6379. Refused.); check DSF_REDIS_URL"
    )


def test_proposal_never_applies_and_apply_passes_the_plan_id() -> None:
    service = Service(propose=lambda _: report(), apply=lambda _: report(applied=True))
    assert not call(service, "propose_plan", **BODY).is_error
    assert not call(service, "apply_plan", **BODY, planId="abc").is_error
    (proposed, first), (applied, second) = service.calls
    assert (proposed, applied) == ("propose", "apply")
    assert (first.plan_id, second.plan_id) == (None, "abc")


@pytest.mark.parametrize("include", [True, False])
def test_objects_are_returned_only_on_request(include: bool) -> None:
    result = call(Service(propose=lambda _: report()), "propose_plan", **BODY, includeYaml=include)
    assert result.structured_content is not None
    assert result.structured_content["output_yaml"] == ("kind: Placement\n" if include else None)


def test_propose_plan_reports_the_next_step() -> None:
    def step(**fields: Any) -> str:
        response = call(Service(propose=lambda _: report(**fields)), "propose_plan", **BODY).structured_content
        assert response is not None
        return str(response["next_step"])

    assert "call apply_plan with the same arguments and planId abc" in step()
    assert "cannot be applied" in step(warnings=["cannot be applied: no label"])
    assert "apply_plan" not in step(warnings=["cannot be applied: no label"])
    assert "The plan is in force" in step(applied=True)


def test_large_plan_is_truncated_with_its_reasons_in_place() -> None:
    names = [f"w{number:03}" for number in range(250)]
    assignments = [
        AssignmentView(workload=name, cluster="c", policy="p", device="d", score=1, replicas=1, kept=0)
        for name in names
    ]
    reasons = [
        ExplanationView(
            workload=name,
            next_best=OptionView(cluster="e", device="d", score=0.5),
            reason="lower_score",
            message=f"{name} scores less",
        )
        for name in reversed(names)
    ]
    changes = [
        ChangeView(kind="Placement", namespace="default", name=name, change=change)
        for name, change in (("a", "created"), ("b", "unchanged"), ("c", "deleted"))
    ]
    plan_report = report(plan=PlanView(assignments=assignments), explanation=reasons, changes=changes)
    response = call(Service(propose=lambda _: plan_report), "propose_plan", **BODY).structured_content
    assert response is not None
    assert len(response["workloads"]) == MAX_LISTED
    assert response["left_out"] == {"workloads": 150}
    assert all(workload["why_not"] == f"{workload['workload']} scores less" for workload in response["workloads"])
    assert [change["change"] for change in response["changes"]] == ["created", "deleted"]


def test_many_scores_are_cut_after_they_are_filtered() -> None:
    def score(cluster: str, name: str) -> ScoreObject:
        metadata = {"name": name, "namespace": cluster, "labels": {}, "annotations": {}}
        return ScoreObject(apiVersion="v", kind="k", metadata=metadata, status={}, freshness=FRESH)

    both = [score(f"c{number}", name) for number in range(150) for name in ("speed", "power")]
    service = Service(list_scores=lambda _: ScoreList(items=both))
    response = call(service, "list_scores").structured_content
    assert response is not None
    assert (len(response["scores"]), response["left_out"]) == (100, 200)
    response = call(service, "list_scores", score="power").structured_content
    assert response is not None
    assert (len(response["scores"]), response["left_out"]) == (100, 50)
    assert {score_row["score"] for score_row in response["scores"]} == {"power"}
    # The first score belongs to no scorer of the framework and has no values yet.
    assert response["scores"][0] == {
        "cluster": "c0",
        "score": "power",
        "meaning": "",
        "item_names": "",
        "freshness": {
            "updated_at": "2026-01-01T00:00:00Z",
            "valid_until": None,
            "expired": False,
            "seconds_left": None,
        },
        "items": {},
        "more_items": 0,
    }


def test_expired_scores_of_a_scorer_come_first() -> None:
    old = FRESH.model_copy(update={"expired": True})
    scores = [
        ClusterScoreView(
            cluster=f"c{number:03}", items=1, lowest=0, highest=0, freshness=old if number > 147 else FRESH
        )
        for number in range(150)
    ]
    view = ScorerView(
        name="speed-scorer",
        namespace="hub",
        description="How fast",
        config_url="http://x",
        score_name="speed",
        score_object="speed",
        score_dimension_format="${app}",
        interval_seconds=30,
        health="Active",
        scores=scores,
    )
    response = call(Service(explain_scorer=lambda _: view), "explain_scorer", name="speed-scorer").structured_content
    assert response is not None
    assert (response["clusters"], response["expired"], len(response["scores"])) == (150, 2, MAX_LISTED)
    assert [score_row["cluster"] for score_row in response["scores"]][:3] == ["c148", "c149", "c000"]


def in_force(namespace: str, objects: int) -> AppliedPlan:
    assignment = AssignmentView(workload="w", cluster="c", policy="p", device="d", score=1, replicas=1, kept=0)
    plan = PlanView(assignments=[assignment] * objects)
    return AppliedPlan(
        namespace=namespace,
        plan_id="abc",
        complete=True,
        plan=plan,
        objects=[f"Placement p{i}" for i in range(objects)],
    )


@pytest.mark.parametrize(("plans", "each", "left_out"), [(1, 100, 0), (5, 20, 0), (130, 1, 30)])
def test_plans_in_force_are_cut_and_one_alone_less(plans: int, each: int, left_out: int) -> None:
    plan_list = PlanList(items=[in_force(f"n{number}", 150) for number in range(plans)])
    response = call(Service(plans=lambda _: plan_list), "list_plans").structured_content
    assert response is not None
    assert (len(response["items"]), response["left_out"]) == (plans - left_out, left_out)
    for item in response["items"]:
        assert (len(item["objects"]), len(item["plan"]["assignments"])) == (each, each)
        assert item["left_out"] == {"assignments": 150 - each, "objects": 150 - each}


def test_reset_list_is_truncated() -> None:
    deleted = [ChangeView(kind="Placement", namespace="n", name=f"p{i}", change="deleted") for i in range(150)]
    reset_report = ResetReport(namespace="n", deleted=deleted)
    response = call(Service(reset=lambda _: reset_report), "reset", namespace="n").structured_content
    assert response is not None
    assert (len(response["deleted"]), response["left_out"]) == (MAX_LISTED, 50)


def test_duplicate_key_in_a_wrapped_argument_is_named() -> None:
    service = Service(propose=lambda _: report())
    result = call(
        service, "propose_plan", **BODY | {"preference": '{"addOnPlacementScore": "a", "addOnPlacementScore": "b"}'}
    )
    assert (result.is_error, text(result)) == (True, "'addOnPlacementScore' is there twice")
    assert service.calls == []


def call_wrongly(tool: str, **arguments: Any) -> str:
    """Return the error text of a call that does not reach the service."""
    service = Service()
    result = call(service, tool, **arguments)
    assert result.is_error
    assert service.calls == []
    assert "\n" not in text(result)
    return text(result)


def test_unknown_tool_lists_the_existing_ones() -> None:
    message = call_wrongly("drop_tables")
    assert message.startswith("there is no tool 'drop_tables'; there are: list_scores, explain_scorer, propose_plan")


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("reset", {}, "wrong arguments: namespace: Field required"),
        ("reset", {"namespace": "Not a namespace"}, "namespace: String should match pattern"),
        ("reset", {"namespace": "a/../../b"}, "namespace: String should match pattern"),
        ("reset", {"namespace": ""}, "namespace: String should match pattern"),
        ("reset", {"namespace": ["default"]}, "namespace: Input should be a valid string"),
        ("reset", {"namespace": "default", "force": True}, "force: Extra inputs are not permitted"),
        ("list_scores", {"maxItems": 0}, "maxItems: Input should be greater than or equal to 1"),
        ("list_scores", {"maxItems": "many"}, "maxItems: Input should be a valid integer"),
        ("list_scores", {"cluster": "../secrets"}, "cluster: String should match pattern"),
        ("explain_scorer", {"name": "x" * 300}, "name: String should have at most 253 characters"),
        ("propose_plan", {"namespace": "default", "clusters": [], "targetWorkloads": []}, "preference"),
        ("propose_plan", BODY | {"clusters": "[not json"}, "clusters: Input should be a valid list"),
        ("propose_plan", BODY | {"clusters": "[" * 100_000}, "clusters: Input should be a valid list"),
        ("propose_plan", BODY | {"planId": "abc"}, "planId: Extra inputs are not permitted"),
        ("apply_plan", BODY, "planId: Field required"),
        ("apply_plan", BODY | {"planId": ""}, "planId: String should have at least 1 character"),
        # Unknown arguments are not ignored.
        ("apply_plan", BODY | {"planId": "abc", "dryRun": True}, "dryRun: Extra inputs are not permitted"),
        ("apply_plan", BODY | {"planId": "abc", "dry_run": True}, "dry_run: Extra inputs are not permitted"),
        ("apply_plan", BODY | {"planId": "abc", "dryrun": True}, "dryrun: Extra inputs are not permitted"),
        ("rescore", {"scorer": "a b"}, "scorer: String should match pattern"),
    ],
)
def test_wrong_arguments_are_named(tool: str, arguments: dict[str, Any], expected: str) -> None:
    problem = call_wrongly(tool, **arguments)
    assert problem.startswith("wrong arguments: ")
    assert expected in problem


def test_lists_and_objects_may_be_json_strings_and_null_means_absent() -> None:
    service = Service(propose=lambda _: report(), list_scores=lambda _: ScoreList(items=[]))
    wrapped = {key: json.dumps(value) if isinstance(value, list | dict) else value for key, value in BODY.items()}
    for arguments in (BODY, wrapped, BODY | {"timeLimit": None, "preferences": None}):
        assert not call(service, "propose_plan", **arguments).is_error
    assert not call(service, "list_scores", cluster=None, score=None, maxItems=None).is_error
    assert service.calls[0] == service.calls[1] == service.calls[2]


def test_scores_of_many_items_are_cut() -> None:
    items = [{"name": f"node-{number}", "value": number % 100} for number in range(500)]
    metadata = {"name": "power", "namespace": "c", "labels": {}, "annotations": {}}
    score = ScoreObject(apiVersion="v", kind="k", metadata=metadata, status={"scores": items}, freshness=FRESH)
    service = Service(list_scores=lambda _: ScoreList(items=[score]))

    def items_of_first_score(**arguments: Any) -> tuple[dict[str, int], int]:
        response = call(service, "list_scores", **arguments).structured_content
        assert response is not None
        return response["scores"][0]["items"], response["scores"][0]["more_items"]

    first_items, more_items = items_of_first_score()
    assert (len(first_items), more_items) == (30, 470)
    assert list(first_items.values()) == sorted(first_items.values(), reverse=True)
    assert set(first_items.values()) <= set(range(93, 100))
    first_items, more_items = items_of_first_score(maxItems=1000)
    assert (len(first_items), more_items) == (500, 0)


def serve_lines(*lines: bytes) -> list[dict[str, Any]]:
    """Return the messages that the server sends to the lines of a client on its standard input."""
    from dsf.optimizer import mcp

    responses = io.StringIO()
    anyio.run(mcp.serve, mcp.make_server(Service()), io.BytesIO(b"\n".join([*lines, b""])), responses)  # type: ignore[arg-type]
    return [json.loads(line) for line in responses.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b"hello", -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', -32700, None),
        (b"[" * 100_000, -32700, None),
        (b"1", -32600, None),
        (b"{}", -32600, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600, None),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":"a","method":"ping","params":[1]}', -32600, "a"),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":1,"a":2}}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}', -32600, None),
        ('{"jsonrpc":"2.0","id":1,"method":"ping"}\n'.encode("utf-16-be"), -32600, 1),
    ],
)
def test_line_without_a_message_gets_an_error(line: bytes, code: int, request_id: object) -> None:
    """Without one, the client would wait for its response until its timeout."""
    (response,) = serve_lines(line.removesuffix(b"\n"))
    assert (response["error"]["code"], response["id"]) == (code, request_id)
    assert response["error"]["message"].startswith("the message is refused: ")


def test_blank_lines_are_skipped() -> None:
    assert serve_lines(b"", b"  ", b"\r") == []


def test_byte_order_mark_before_a_message_is_removed() -> None:
    from dsf.optimizer import mcp

    message = '{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    assert mcp._CheckedLines(io.BytesIO(message.encode("utf-8-sig"))).readline() == message


def test_name_of_an_unknown_tool_is_shortened() -> None:
    result = call(Service(), "t" * 100_000)
    assert "there is no tool 'ttt" in result.content[0].text  # type: ignore[union-attr]
    assert len(result.content[0].text) < 1000  # type: ignore[union-attr]


class Requests(io.BytesIO):
    """The messages of a client that closes its output after them. `has_ended` is set when the server reads the end."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        start = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        all_messages: list[dict[str, Any]] = [
            {"id": 1, "method": "initialize", "params": start},
            {"method": "notifications/initialized"},
            *messages,
        ]
        super().__init__("".join(json.dumps({"jsonrpc": "2.0"} | message) + "\n" for message in all_messages).encode())
        self.has_ended = threading.Event()

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        if not line:
            self.has_ended.set()
        return line


def answer_all(service: Service, messages: Requests) -> dict[Any, dict[str, Any]]:
    """Return the responses of the server over standard input and output, by the id of the request."""
    from dsf.optimizer.mcp import make_server, serve

    output = io.StringIO()
    anyio.run(serve, make_server(service), messages, output)
    return {response["id"]: response for response in map(json.loads, output.getvalue().splitlines())}


@pytest.mark.parametrize("number", [1, 20])
def test_calls_that_run_at_the_end_of_the_input_are_answered(number: int) -> None:
    call_list = {"method": "tools/call", "params": {"name": "list_plans", "arguments": {}}}
    messages = Requests(*({"id": 2 + call_number} | call_list for call_number in range(number)))

    def list_plans() -> PlanList:
        assert messages.has_ended.wait(60)
        return PlanList(items=[])

    responses = answer_all(Service(plans=list_plans), messages)
    assert responses.keys() == set(range(1, number + 2))
    assert all(response.get("result") for response in responses.values()), responses


def test_cancelled_call_does_not_delay_the_end() -> None:
    messages = Requests(
        {"id": 2, "method": "tools/call", "params": {"name": "list_plans", "arguments": {}}},
        {"method": "notifications/cancelled", "params": {"requestId": 2}},
    )

    def list_plans() -> PlanList:
        assert messages.has_ended.wait(60)
        return PlanList(items=[])

    assert answer_all(Service(plans=list_plans), messages).keys() == {1}
