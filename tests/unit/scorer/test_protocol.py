"""Half-sent heads are let go by every server that uvicorn runs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

import dsf.http.protocol
from dsf.scorer import protocol
from dsf.scorer.protocol import PatientProtocol
from tests.support.wait import wait_for

GOOD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def app(scope: object, receive: object, send: object) -> None:
    # From the first answer on; a busy machine may need longer for the first request.
    protocol.HEAD_SECONDS = 1.0  # type: ignore[misc]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": b"ok"})  # type: ignore[operator]


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 1.0)
    config = uvicorn.Config(app, http=PatientProtocol, lifespan="off", log_config=None, timeout_keep_alive=60)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        wait_for(lambda: server.started, 30, "the server listens")
        yield int(listener.getsockname()[1])
        server.should_exit = True
        thread.join(30)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nX-Slow: y"])
def test_a_head_that_does_not_come_is_not_waited_for(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), 30) as half:
        half.sendall(sent)
        assert half.recv(100) == b""


def test_half_a_head_after_a_whole_request_is_not_waited_for(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 60.0)
    with socket.create_connection(("127.0.0.1", port), 30) as kept:
        kept.sendall(GOOD)
        answer = b""
        while not answer.endswith(b"ok"):
            answer += kept.recv(1000)
        assert answer.startswith(b"HTTP/1.1 200")
        kept.sendall(GOOD[:10])
        assert kept.recv(100) == b""


def test_a_kept_connection_without_a_head_stays(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 60.0)
    with socket.create_connection(("127.0.0.1", port), 30) as kept:
        kept.sendall(GOOD)
        answer = b""
        while not answer.endswith(b"ok"):
            answer += kept.recv(1000)
        # Longer than a head has: uvicorn's own time for kept connections counts here.
        kept.settimeout(2.0)
        with pytest.raises(TimeoutError):
            kept.recv(1)


def test_the_framework_has_the_same_module() -> None:
    # The library imports nothing of the framework, and the framework not the library, which needs numpy.
    library = Path(protocol.__file__).read_text(encoding="utf-8")
    assert Path(dsf.http.protocol.__file__).read_text(encoding="utf-8") == library
