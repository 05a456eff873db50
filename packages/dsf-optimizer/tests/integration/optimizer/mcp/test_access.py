"""Authorization of the tools: the same as over HTTP, checked in each call."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from dsf.kube.resources import ADDON_PLACEMENT_SCORES
from dsf.placements.kinds import MANIFEST_WORK_REPLICA_SETS, POLICIES
from tests.support.assistant import Assistant, Mode, problem

from ..bed import OptimizerHarness
from .server import Server

#: Rights of a person who only reads.
READER = [
    {"apiGroups": [resource.group], "resources": [resource.plural], "verbs": ["get", "list"]}
    for resource in (ADDON_PLACEMENT_SCORES, MANIFEST_WORK_REPLICA_SETS, POLICIES)
]
#: Rights of a person who may also move workloads.
PLANNER = [
    *READER,
    {
        "apiGroups": ["cluster.open-cluster-management.io"],
        "resources": ["placements"],
        "verbs": ["create", "delete", "list"],
    },
    {
        "apiGroups": ["policy.open-cluster-management.io"],
        "resources": ["placementbindings"],
        "verbs": ["create", "delete", "list"],
    },
]
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


def post(url: str, body: Any = INITIALIZE, **headers: str) -> requests.Response:
    return requests.post(url, json=body, headers=ACCEPT | headers, timeout=300)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_reader_may_propose_plans_and_not_apply_them(
    guarded_server: Server, bed: OptimizerHarness, token: Callable[..., str], mode: Mode
) -> None:
    reader = Assistant(guarded_server.mcp, token=token("reader", READER), mode=mode)
    proposal = reader.ask("propose_plan", **bed.body())
    assert proposal["objective_value"] == 115
    assert len(reader.ask("list_scores", cluster=bed.clusters[0])["scores"]) == 2
    refusal = reader.problem("apply_plan", **bed.body(), planId=proposal["plan_id"])
    assert refusal == (
        f"system:serviceaccount:{bed.namespace}:reader may not create placements.cluster.open-cluster-management.io "
        f"in namespace {bed.namespace}; needed to apply a plan"
    )
    assert "may not delete placements" in reader.problem("reset", namespace=bed.namespace)
    assert "may not list placements" in reader.problem("list_plans")
    assert "may not list dynamicscorers" in reader.problem("explain_scorer", name="performance-scorer")
    assert "may not update dynamicscorers" in reader.problem("rescore", scorer="performance-scorer")
    assert bed.objects() == {}


def test_concurrent_callers_keep_their_identity(
    guarded_server: Server, bed: OptimizerHarness, token: Callable[..., str]
) -> None:
    tokens = {name: token(name, rules) for name, rules in (("looks", READER), ("moves", PLANNER))}

    def ask(number: int) -> tuple[str, bool, str]:
        name = ("looks", "moves")[number % 2]
        mode: Mode = "legacy" if number % 4 < 2 else "auto"
        result = Assistant(guarded_server.mcp, token=tokens[name], mode=mode).call(
            "list_plans", namespace=bed.namespace
        )
        return name, bool(result.is_error), problem(result) if result.is_error else ""

    with ThreadPoolExecutor(8) as pool:
        for name, is_error, text in pool.map(ask, range(24)):
            assert is_error is (name == "looks")
            assert not is_error or text.startswith(f"system:serviceaccount:{bed.namespace}:looks may not")
    calls = [line for line in guarded_server.log().splitlines() if '"tool called"' in line and bed.namespace in line]
    assert sum(f"{bed.namespace}:moves" in line for line in calls) == 12


@pytest.mark.parametrize("header", [None, "Bearer not-a-token", "Bearer ", "Basic dXNlcjpwYXNz", "not-a-token"])
def test_request_without_a_valid_token_is_refused(guarded_server: Server, header: str | None) -> None:
    response = post(guarded_server.mcp, **({"Authorization": header} if header else {}))
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert "not-a-token" not in response.text


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT", "OPTIONS"])
def test_methods_cannot_bypass_the_token(guarded_server: Server, method: str) -> None:
    for path in ("/mcp", "/mcp/", "/mcp?x=1"):
        response = requests.request(method, guarded_server.url + path, timeout=300, allow_redirects=False)
        assert response.status_code == 401, path


def test_foreign_web_page_is_refused_even_with_a_token(
    guarded_server: Server, bed: OptimizerHarness, token: Callable[..., str]
) -> None:
    authorization = {"Authorization": f"Bearer {token('browser', READER)}"}
    response = post(guarded_server.mcp, **authorization, Origin="https://evil.example")
    assert response.status_code == 403
    assert response.json()["detail"].startswith("requests of the web page 'https://evil.example' are refused")
    assert post(guarded_server.mcp, **authorization, Origin="null").status_code == 403
    assert post(guarded_server.mcp, **authorization, Origin="http://127.0.0.1.evil.example").status_code == 403
    assert post(guarded_server.mcp, **authorization, Origin="http://[").status_code == 403
    assert post(guarded_server.mcp, **authorization, Origin="http://localhost:3000").status_code == 200
    # A page of the service itself, under any of its names.
    same_origin = {"Host": "optimizer.example", "Origin": "https://optimizer.example"}
    assert post(guarded_server.mcp, **authorization, **same_origin).status_code == 200
