"""Errors: an assistant gets the field, the cause and the remedy; requests that violate the protocol are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from tests.support.assistant import Assistant
from tests.support.redisserver import free_port

from ..bed import OptimizerHarness
from .server import Server
from .test_access import ACCEPT, INITIALIZE, post


def test_unreachable_hub_is_reported_by_each_tool(
    stdio: Callable[..., Assistant], bed: OptimizerHarness, tmp_path: Path
) -> None:
    """The process starts nevertheless, and each tool reports why it has no response."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(bed.plane.kubeconfig.read_text().replace(str(bed.plane.port), str(free_port())))
    problem = stdio(kubeconfig=kubeconfig).problem("list_scores")
    assert "cannot reach https://127.0.0.1:" in problem
    assert "admin-token" not in problem


def test_clients_of_the_old_dialect_need_no_session(open_server: Server) -> None:
    body = {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {}}
    response = post(open_server.mcp, body, **{"MCP-Protocol-Version": "2025-06-18"})
    assert response.status_code == 200
    assert len(response.json()["result"]["tools"]) == 7
    assert "mcp-session-id" not in response.headers


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"", {}, 400),
        (b"[]", {}, 400),
        (b"null", {}, 400),
        (b'{"jsonrpc":"2.0"}', {}, 400),
        (b"[" * 200_000, {}, 400),
        (b"\xff\xfe", {}, 400),
        (json.dumps(INITIALIZE).encode(), {"Content-Type": "text/plain"}, 400),
        (json.dumps(INITIALIZE).encode(), {"Accept": "text/html"}, 406),
        (b" " * (4 * 1024 * 1024 + 1), {}, 413),
        (json.dumps(INITIALIZE).encode(), {"MCP-Protocol-Version": "1999-01-01"}, 400),
    ],
)
def test_non_protocol_requests_are_refused(
    open_server: Server, body: bytes, headers: dict[str, str], status: int
) -> None:
    request_headers = {"Content-Type": "application/json"} | ACCEPT | headers
    response = requests.post(open_server.mcp, data=body, headers=request_headers, timeout=300)
    assert response.status_code == status, response.text
    assert "Traceback" not in response.text


def test_unsupported_methods_and_paths_are_refused(open_server: Server) -> None:
    # The server keeps no sessions, so clients cannot listen to or end one.
    for method in ("GET", "DELETE", "PUT"):
        response = requests.request(method, open_server.mcp, headers=ACCEPT, timeout=300)
        assert (response.status_code, response.headers["Allow"]) == (405, "POST"), method
    assert requests.get(f"{open_server.url}/nothing", timeout=300).status_code == 404


def test_http_api_is_served_beside_mcp(open_server: Server, bed: OptimizerHarness) -> None:
    response = requests.post(f"{open_server.url}/optimize", json=bed.body(dryRun=True), timeout=300)
    assert (response.status_code, response.json()["objective_value"]) == (200, 115)
    assert requests.get(f"{open_server.url}/readyz", timeout=300).status_code == 200


def test_tool_calls_log_no_crash(open_server: Server, near: Assistant) -> None:
    near.ask("list_scores", cluster="nobody")
    assert "tool crashed" not in open_server.log()
    assert "Traceback" not in open_server.log()
