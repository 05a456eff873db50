"""Clients that send half a request or read half an answer hold little of a server, and only for some time."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvicorn

import dsf.http.serving
from dsf.scorer import protocol
from dsf.scorer.protocol import PatientProtocol
from tests.support.wait import wait_for

GOOD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
#: More than the kernel's buffers of a connection take.
SIZE = 20_000_000


async def app(scope: object, receive: object, send: object) -> None:
    # From the first answer on; a busy machine may need longer for the first request.
    protocol.HEAD_SECONDS = 1.0  # type: ignore[misc]
    body = b"x" * SIZE if scope["path"] == "/large" else b"ok"  # type: ignore[index]
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": body})  # type: ignore[operator]


@pytest.fixture
def server() -> uvicorn.Server:
    config = uvicorn.Config(app, http=PatientProtocol, lifespan="off", log_config=None, timeout_keep_alive=60)
    return uvicorn.Server(config)


@pytest.fixture
def port(server: uvicorn.Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 1.0)
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


def received(client: socket.socket) -> bytes:
    """All until the end of the connection."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(1 << 20):
            found += piece
    return found


def test_an_idle_connection_makes_place_for_a_new_one(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 60.0)
    monkeypatch.setattr(protocol, "MOST_CONNECTIONS", 2)
    with ExitStack() as opened:
        silent, newer = (opened.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(2))
        with socket.create_connection(("127.0.0.1", port), 30) as client:
            client.sendall(GOOD)
            assert client.recv(12) == b"HTTP/1.1 200"
        assert received(silent) == b""
        newer.sendall(GOOD)
        assert newer.recv(12) == b"HTTP/1.1 200"


def test_a_client_that_does_not_read_is_not_waited_for(
    server: uvicorn.Server, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "SEND_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(LARGE)
        assert client.recv(12) == b"HTTP/1.1 200"
        wait_for(lambda: not server.server_state.connections, 30, "the connection is closed")
        assert len(received(client)) < SIZE


def test_what_clients_do_not_read_is_bounded(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MOST_UNSENT", SIZE)
    with ExitStack() as opened:
        slow = []
        for _ in range(5):
            # The application shortens it.
            monkeypatch.setattr(protocol, "HEAD_SECONDS", 60.0)
            client = opened.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            slow.append(client)
            client.sendall(LARGE)
            # The answer has begun.
            assert client.recv(12) == b"HTTP/1.1 200"
        lengths = [len(received(client)) for client in slow]
    # Each had its answer in the server, and the oldest were closed for the newest.
    assert [length < SIZE for length in lengths] == [True] * 4 + [False]


def test_the_framework_has_the_same_module() -> None:
    # The library imports nothing of the framework, and the framework not the library, which needs numpy.
    ours = Path(dsf.http.serving.__file__).read_text(encoding="utf-8")
    library = Path(protocol.__file__).read_text(encoding="utf-8")
    # From its limits on, it is a part of the framework's module; the seconds of a header stand elsewhere there.
    assert protocol.HEAD_SECONDS == dsf.http.serving.HEAD_SECONDS
    beginning = "#: Seconds for a client to read an answer"
    assert beginning in library
    assert beginning + library.partition(beginning)[2] in ours
