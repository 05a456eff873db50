"""Clients without a request do not keep others out: the command of the images, and `run`."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from dsf.scorer.connections import MAX_CONNECTIONS
from dsf.up.httpcheck import make_http_check
from tests.support.child import Child
from tests.support.redisserver import free_port
from tests.support.wait import wait_for

pytestmark = pytest.mark.whole

ROOT = Path(__file__).resolve().parents[5]
_SCORER = """
import threading
from dsf.scorer import Score, Scorer, ScorerApp

scorer = Scorer(name="a", description="b", score_name="c", interval=30)
inside, leave = threading.Event(), threading.Event()

@scorer.score
def score(series):
    if series:
        inside.set()
        leave.wait(60)
    return [Score(1)]

app = ScorerApp(scorer)

@app.api.get("/inside")
def is_inside():
    return inside.is_set()

@app.api.get("/leave")
def end():
    leave.set()

if __name__ == "__main__":
    app.run(port=int(__import__("sys").argv[1]))
"""
_HEAD = b"POST /scoring HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n"


def _image_command() -> list[str]:
    """Return the options of the image in the tutorial, without those of the address."""
    (entrypoint,) = re.findall(r'^ENTRYPOINT (\["uvicorn".*)$', (ROOT / "docs" / "tutorial.md").read_text(), re.M)
    words: list[str] = json.loads(entrypoint)
    return ["-m", "uvicorn", "module:app", *words[words.index("--no-access-log") :]]


@pytest.fixture(params=["image", "run"])
def port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    (tmp_path / "module.py").write_text(_SCORER)
    number = free_port()
    command = ["-m", "module", str(number)]
    if request.param == "image":
        command = [*_image_command(), "--port", str(number)]
    child = Child((sys.executable, *command), tmp_path / "log", {"PYTHONPATH": str(tmp_path)})
    try:
        wait_for(make_http_check(f"http://127.0.0.1:{number}/healthz"), 30, f"the scorer: {child.tail()}")
        yield number
    finally:
        child.kill()


@contextlib.contextmanager
def _clients(port: int, start: bytes, address: str) -> Iterator[None]:
    """Connect more clients than there are connections, each of which sends the start of a request."""
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS + 50):
            client = stack.enter_context(socket.socket())
            client.bind((address, 0))
            client.settimeout(30)
            client.connect(("127.0.0.1", port))
            with contextlib.suppress(ConnectionError):
                client.sendall(start)
        yield


@pytest.mark.parametrize("port", ["image"], indirect=True)
@pytest.mark.parametrize("start", [b"", _HEAD, _HEAD + b"\r\n{"], ids=["silent", "half-header", "half-body"])
def test_clients_without_a_request_displace_only_their_own_connections(port: int, start: bytes) -> None:
    body = {"data": [{"metric": {}, "values": [[1, "2"]]}]}
    with ThreadPoolExecutor(1) as threads, requests.Session() as kept_session:
        scoring = threads.submit(requests.post, f"http://127.0.0.1:{port}/scoring", json=body, timeout=60)
        wait_for(lambda: requests.get(f"http://127.0.0.1:{port}/inside", timeout=30).json(), 30, "the request")
        with _clients(port, start, "127.0.0.2"):
            for path in ("config", "healthz", "leave"):
                assert kept_session.get(f"http://127.0.0.1:{port}/{path}", timeout=30).status_code == 200
            assert scoring.result().status_code == 200


def test_client_of_the_same_address_replaces_silent_connections(port: int) -> None:
    with _clients(port, b"", "127.0.0.1"):
        assert requests.get(f"http://127.0.0.1:{port}/config", timeout=30).status_code == 200


@pytest.mark.parametrize(
    "request_text",
    [
        b"POST /scoring HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 5000,
        b"GET /config HTTP/1.1\r\nHost: a\r\n" + b"a: b\r\n" * 2000 + b"\r\n",
    ],
    ids=["small-chunks", "header-lines"],
)
def test_requests_that_take_long_to_parse_are_refused(port: int, request_text: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        # The server may close the connection while the request is being sent.
        with contextlib.suppress(ConnectionError):
            client.sendall(request_text)
        assert client.recv(1000).startswith(b"HTTP/1.1 400")
    assert requests.get(f"http://127.0.0.1:{port}/config", timeout=30).status_code == 200
