"""Listening sockets: the connection that is closed for a new one, and options of uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from dsf.errors import SettingsError
from dsf.http import listening
from dsf.http.listening import Listener, Progress, State
from dsf.http.serving import HttpServer, make_config
from tests.support.wait import PATIENCE


@contextlib.contextmanager
def client_of(listener: Listener, address: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.socket() as client:
        client.bind((address, 0))
        client.connect(listener.getsockname())
        yield client


def in_loop(test: Callable[[Listener, contextlib.ExitStack], None]) -> None:
    """Run a function in an event loop, in which connections are accepted."""

    async def run() -> None:
        with Listener("127.0.0.1", 0) as listener, contextlib.ExitStack() as stack:
            test(listener, stack)

    asyncio.run(run())


def accept_client(listener: Listener, stack: contextlib.ExitStack, address: str = "127.0.0.1") -> listening.Connection:
    stack.enter_context(client_of(listener, address))
    connection, _ = listener.accept()
    assert isinstance(connection, listening.Connection)
    return stack.enter_context(connection)


def is_aborted(connection: listening.Connection) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


def test_listener_names_its_protocol_so_that_responses_are_not_delayed() -> None:
    # asyncio sets TCP_NODELAY only on connections whose socket names its protocol.
    with Listener("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


@pytest.mark.parametrize("variable", ["DSF_LISTEN_PORT", "DSF_PROBE_PORT"])
def test_port_in_use_is_reported_with_its_setting(variable: str) -> None:
    with Listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SettingsError, match=f"{variable}: cannot listen on 127.0.0.1:{port}"):
            Listener("127.0.0.1", port, variable=variable)


def test_new_connection_takes_the_place_of_one_of_the_largest_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", 4)

    def check(listener: Listener, stack: contextlib.ExitStack) -> None:
        first = accept_client(listener, stack, "127.0.0.2")
        crowd = [accept_client(listener, stack, "127.0.0.3") for _ in range(3)]
        accept_client(listener, stack, "127.0.0.3")
        assert [is_aborted(connection) for connection in (first, *crowd)] == [False, True, False, False]
        accept_client(listener, stack, "127.0.0.4")
        assert [is_aborted(connection) for connection in (first, *crowd)] == [False, True, True, False]

    in_loop(check)


def test_idle_connection_is_closed_before_slow_and_active_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", 3)

    def check(listener: Listener, stack: contextlib.ExitStack) -> None:
        working, slow, idle = (accept_client(listener, stack) for _ in range(3))
        working.set_state(State.WORKING)
        idle.set_state(State.IDLE)
        newest = [accept_client(listener, stack)]
        assert [is_aborted(connection) for connection in (working, slow, idle)] == [False, False, True]
        newest.append(accept_client(listener, stack))
        assert [is_aborted(connection) for connection in (working, slow, *newest)] == [False, True, False, False]

    in_loop(check)


def test_connection_without_a_whole_header_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HEAD_SECONDS", 0.0)

    async def run() -> None:
        with Listener("127.0.0.1", 0) as listener, client_of(listener) as client:
            connection, _ = listener.accept()
            with connection:
                client.setblocking(False)
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""

    asyncio.run(run())


def test_slowest_readers_are_closed_if_too_many_bytes_are_unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MAX_UNSENT_BYTES", 10)

    def check(listener: Listener, stack: contextlib.ExitStack) -> None:
        readers = [accept_client(listener, stack) for _ in range(3)]
        for last_progress_at, reader in enumerate(readers):
            reader.last_progress_at, reader.unsent_bytes = last_progress_at, 8
        listener.limit_unsent_bytes()
        assert [is_aborted(reader) for reader in readers] == [True, True, False]

    in_loop(check)


def test_ipv6_clients_share_by_network() -> None:
    share = listening._compute_client_key
    assert share("2001:db8:1:2::1") == share("2001:db8:1:2:ffff::9") != share("2001:db8:1:3::1")
    assert share("::ffff:10.0.0.1") != share("::ffff:10.0.0.2")


def test_uvicorn_keeps_idle_connections_longer_than_balancers_and_reads_long_headers() -> None:
    async def app(*_: object) -> None: ...

    with Listener("127.0.0.1", 0) as listener:
        config = make_config(app, listener, shutdown_seconds=1)
    assert config.timeout_keep_alive > 600
    assert config.h11_max_incomplete_event_size == 64 * 1024
    assert config.limit_concurrency is not None
    assert config.limit_concurrency > listening.MAX_CONNECTIONS


@pytest.fixture
def server() -> Iterator[HttpServer]:
    """A server that reads a whole request before it responds."""

    async def read_all(
        scope: dict[str, object], receive: Callable[[], Awaitable[Any]], send: Callable[..., Any]
    ) -> None:
        if scope["type"] == "http":
            while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                pass
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    running = HttpServer(read_all, "127.0.0.1", 0, name="test")
    running.start()
    yield running
    running.stop()


_CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (_CHUNKED + b"1\r\nx\r\n" * 150 + b"0\r\n\r\n", 200),
        (_CHUNKED + (b"40\r\n" + b"x" * 64 + b"\r\n") * 5000 + b"0\r\n\r\n", 200),
        # A few connections with such bodies kept all clients of the page waiting for half a minute.
        (_CHUNKED + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 200 + b"\r\n", 200),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 2000 + b"\r\n", 400),
        (b"GET / HTTP/1.1\nHost: x\n" + b"a: b\n" * 2000 + b"\n", 400),
    ],
)
def test_requests_that_take_long_to_parse_are_refused(
    server: HttpServer, request_text: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with socket.create_connection(server.address, PATIENCE) as client:
            # The server may close the connection while the request is being sent.
            with contextlib.suppress(ConnectionError):
                client.sendall(request_text)
            assert client.recv(1000).split()[1] == b"%d" % status
    # Anyone can send such requests, so each one must not be logged.
    assert len(caplog.records) <= 1


def test_pipelined_requests_have_their_own_limits(server: HttpServer) -> None:
    request_text = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 100 + b"\r\n"
    with socket.create_connection(server.address, PATIENCE) as client:
        client.sendall(request_text * 20)
        received = b""
        while received.count(b"HTTP/1.1 200") < 20 and (piece := client.recv(10_000)):
            received += piece
    assert received.count(b"HTTP/1.1 200") == 20


def test_requests_of_unknown_connections_are_served() -> None:
    served_requests: list[str] = []

    async def app(scope: object, receive: object, send: object) -> None:
        served_requests.append("request")

    async def run() -> None:
        with Listener("127.0.0.1", 0) as listener:
            await Progress(app, listener)({"type": "http", "client": ("10.0.0.1", 1)}, None, None)  # type: ignore[arg-type]

    asyncio.run(run())
    assert served_requests == ["request"]
