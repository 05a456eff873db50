"""Requests to the service with bodies that are too large, too deep or wrong; they make no plan, so no hub is needed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import requests

from dsf.optimizer import middleware
from dsf.optimizer.access import TokenAccess
from dsf.optimizer.app import make_app
from dsf.optimizer.backend import ManifestClient
from dsf.optimizer.params import OptimizeParams
from dsf.optimizer.requestbody import MAX_BODY
from dsf.optimizer.selector import PlacementSelector
from dsf.optimizer.service import OptimizerService
from dsf.optimizer.solver import SolverProcess
from dsf.process.clienttoken import MAX_BURST
from tests.support.scoringservices import served

from ...unit.optimizer.test_params import BODY

TOKEN = "the-right-token-of-all"
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "Accept": "application/json"}
PATHS = ("/optimize", "/reset", "/mcp")


@contextmanager
def guarded_service(folder: Path) -> Iterator[str]:
    """A service with the tools for assistants that requires a token, and never calls its hub."""
    # Here, because all test processes load this module and one runs its tests.
    from dsf.optimizer.mcp import McpMount

    token = folder / "token"
    token.write_text(TOKEN)
    access = TokenAccess(token)
    backend = ManifestClient(cast("Any", None))
    service = OptimizerService(backend, SolverProcess(), PlacementSelector.parse("name"), access=access)
    with served(make_app(service, McpMount(service))) as address:
        yield address


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with guarded_service(tmp_path_factory.mktemp("optimizer")) as address:
        yield address


def pieces(count: int, size: int = 65536) -> Iterator[bytes]:
    """Yield a body of unknown length."""
    for _ in range(count):
        yield b" " * size


def is_problem(response: requests.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    return problem


@pytest.mark.parametrize("path", PATHS)
def test_oversized_body_is_refused(url: str, path: str) -> None:
    for body in (b" " * (MAX_BODY + 1), pieces(MAX_BODY // 65536 + 1)):
        problem = is_problem(requests.post(url + path, data=body, headers=HEADERS, timeout=300), 413)
        assert str(MAX_BODY) in problem["detail"]


def test_content_length_beyond_the_limit_is_refused_unread(url: str) -> None:
    with requests.Session() as session:
        prepared = session.prepare_request(requests.Request("POST", f"{url}/optimize", data=b"{}", headers=HEADERS))
        prepared.headers["Content-Length"] = str(10**12)
        is_problem(session.send(prepared, timeout=300), 413)


def test_body_of_the_maximum_length_is_read(url: str) -> None:
    body = json.dumps(BODY | {"namespace": "No"}).encode()
    for request_body in (body.ljust(MAX_BODY), iter([body, b" " * (MAX_BODY - len(body))])):
        problem = is_problem(requests.post(f"{url}/optimize", data=request_body, headers=HEADERS, timeout=300), 422)
        assert "body.namespace" in problem["detail"]


def test_body_of_an_unauthenticated_caller_is_not_parsed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "load_json", pytest.fail)
    for body in (b"x" * 1000, b'{"a":1,"a":2}', b" " * (MAX_BODY + 1)):
        is_problem(requests.post(f"{url}/optimize", data=body, timeout=300), 401)


@pytest.mark.parametrize("path", PATHS)
def test_duplicate_key_in_a_large_body_does_not_block_probes(url: str, path: str) -> None:
    """The search takes one pass, in a thread."""
    body = b"{" + b"".join(b'"k%d":1,' % number for number in range(300_000)) + b'"z":1,"z":2}'
    started = time.process_time()
    problem = is_problem(requests.post(url + path, data=body, headers=HEADERS, timeout=300), 422)
    # The service runs in a thread of this process. The square of the keys takes half an hour.
    assert time.process_time() - started < 60
    assert problem["detail"] == "body: 'z' is there twice"


def test_probe_is_answered_while_a_body_is_validated(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()
    is_released: list[bool] = []

    def hold(_: object) -> None:
        entered.set()
        is_released.append(leave.wait(120))
        raise ValueError("it was held")

    monkeypatch.setattr(OptimizeParams, "_list_preferences", hold)
    responses: list[requests.Response] = []
    client = threading.Thread(
        target=lambda: responses.append(
            requests.post(f"{url}/optimize", json=BODY | {"dryRun": True}, headers=HEADERS, timeout=300)
        )
    )
    client.start()
    try:
        assert entered.wait(120)
        assert requests.get(f"{url}/healthz", timeout=300).status_code == 200
    finally:
        leave.set()
        client.join()
    assert is_released == [True]
    assert is_problem(responses[0], 422)["detail"] == "body: it was held"


def test_body_of_too_many_values_is_refused(url: str) -> None:
    body = b'{"clusters":[' + b"1," * 600_000 + b"1]}"
    problem = is_problem(requests.post(f"{url}/optimize", data=body, headers=HEADERS, timeout=300), 400)
    assert problem["detail"] == "body: it has more than 500000 values"


def test_errors_of_many_wrong_elements_are_truncated(url: str) -> None:
    for invalid_clusters in ([1] * 100_000, [{"name": "c", "availablePolicies": [1] * 90}] * 3_000):
        response = requests.post(
            f"{url}/optimize", json=BODY | {"clusters": invalid_clusters}, headers=HEADERS, timeout=300
        )
        assert len(is_problem(response, 422)["detail"]) < 1000


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b'{"namespace": ' + b"[" * 100_000])
def test_too_deeply_nested_json_is_refused(url: str, body: bytes) -> None:
    is_problem(requests.post(f"{url}/optimize", data=body, headers=HEADERS, timeout=300), 400)


def test_other_refusals_have_the_same_form(url: str) -> None:
    is_problem(requests.get(f"{url}/no-such-path", headers=HEADERS, timeout=300), 404)
    is_problem(requests.put(f"{url}/mcp", headers=HEADERS, timeout=300), 405)
    is_problem(requests.post(f"{url}/optimize", data=b"{", headers=HEADERS, timeout=300), 422)


def test_errors_of_the_whole_request_are_in_plain_words(url: str) -> None:
    body = BODY | {"preferences": [{"addOnPlacementScore": "t"}]}
    problem = is_problem(requests.post(f"{url}/optimize", json=body, headers=HEADERS, timeout=300), 422)
    assert problem["detail"] == "body: either preference or preferences is required"


@pytest.mark.parametrize("path", PATHS)
def test_duplicate_key_in_a_body_is_refused(url: str, path: str) -> None:
    """A duplicate key would lose one of its values, such as that of `dryRun`."""
    body = json.dumps(BODY | {"more": [{"dryRun": True}]}).replace('"dryRun": true', '"dryRun": true, "dryRun": false')
    for request_body in (body.encode(), iter([body[:9].encode(), body[9:].encode()])):
        problem = is_problem(requests.post(url + path, data=request_body, headers=HEADERS, timeout=300), 422)
        assert problem["detail"] == "body: 'dryRun' is there twice"


def test_wrong_tokens_of_one_client_are_limited(tmp_path: Path) -> None:
    with guarded_service(tmp_path) as url:
        responses = [
            requests.get(f"{url}/plans", headers={"Authorization": f"Bearer {number}"}, timeout=300)
            for number in range(MAX_BURST + 1)
        ]
        assert [response.status_code for response in responses] == [401] * MAX_BURST + [429]
        is_problem(requests.get(f"{url}/plans", headers=HEADERS, timeout=300), 429)
