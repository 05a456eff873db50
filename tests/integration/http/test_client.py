"""dsf.http against real servers that misbehave."""

from __future__ import annotations

import gc
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psutil
import pytest

from dsf import http
from dsf.errors import HttpError
from dsf.http import access, addresses, transport
from dsf.http.access import make_bearer_access
from dsf.http.deadline import assign_exchange_owner
from tests.support import httpserver
from tests.support.httpserver import ScriptedServer, answer
from tests.support.wait import PATIENCE

TOKEN = "canary-token-4f1e"


@pytest.fixture(autouse=True)
def _close_connections() -> Iterator[None]:
    yield
    transport.close()


def get(url: str, seconds: float = 60.0, max_bytes: int = 1_000_000, **options: object) -> bytes:
    return http.get(url, deadline=time.monotonic() + seconds, max_bytes=max_bytes, **options)  # type: ignore[arg-type]


def failure(url: str, seconds: float = 60.0, max_bytes: int = 1_000_000, **options: object) -> HttpError:
    with pytest.raises(HttpError) as caught:
        get(url, seconds, max_bytes, **options)
    return caught.value


def test_get_returns_the_body_and_sends_query_and_token() -> None:
    with ScriptedServer(answer("hello")) as server:
        assert (
            get(f"{server.url}/x", params={"query": 'up{a="b"}', "start": 1}, access=make_bearer_access(TOKEN))
            == b"hello"
        )
        assert get(f"{server.url}/x") == b"hello"
    first, second = server.requests
    assert first.query == {"query": 'up{a="b"}', "start": "1"}
    assert first.headers["Authorization"] == f"Bearer {TOKEN}"
    assert first.headers["Accept-Encoding"] == "gzip"
    assert "Authorization" not in second.headers


def test_finished_exchange_is_freed() -> None:
    class Cycle:
        """Its payload would stay in memory until Python collects garbage."""

        deadline = time.monotonic() + 60

    gc.disable()
    try:
        with ScriptedServer(answer("hello")) as server:
            owner = Cycle()
            freed = weakref.ref(owner)
            with assign_exchange_owner(owner):
                get(server.url)
            del owner
            assert freed() is None
    finally:
        gc.enable()


def test_credentials_in_urls_are_not_sent() -> None:
    with ScriptedServer(answer("hello")) as server:
        assert get(f"http://user:secret@127.0.0.1:{server.port}/") == b"hello"
    assert "Authorization" not in server.requests[0].headers


@pytest.mark.parametrize("body", [b"", b"x", b"y" * 300_000])
def test_gzip_and_chunked_responses_are_decoded(body: bytes) -> None:
    def chunked(exchange: httpserver.Exchange) -> None:
        exchange.http.send_response(200)
        exchange.http.send_header("Transfer-Encoding", "chunked")
        exchange.http.end_headers()
        if body:
            exchange.http.wfile.write(b"%x\r\n%b\r\n" % (len(body), body))
        exchange.http.wfile.write(b"0\r\n\r\n")

    with ScriptedServer(zipped=httpserver.zipped(body), chunked=chunked) as server:
        assert get(f"{server.url}/zipped") == body
        assert get(f"{server.url}/chunked") == body
        assert get(f"{server.url}/chunked") == body


def test_transport_close_ends_connections_of_all_threads() -> None:
    with ScriptedServer(answer("hello")) as server:
        thread = threading.Thread(target=get, args=(server.url,))
        thread.start()
        thread.join()
        process = psutil.Process()
        assert any(
            connection.raddr and connection.raddr.port == server.port for connection in process.net_connections()
        )
        transport.close()
        assert not any(
            connection.raddr and connection.raddr.port == server.port for connection in process.net_connections()
        )


def test_connections_are_kept_open() -> None:
    ports = []

    def note(exchange: httpserver.Exchange) -> None:
        ports.append(exchange.http.client_address[1])
        exchange.send(b"x" * 5000)

    with ScriptedServer(note) as server:
        for _ in range(3):
            get(server.url)
    assert len(set(ports)) == 1


@pytest.mark.parametrize("status", [102, 103, 199])
def test_interim_response_is_skipped(status: int) -> None:
    """The connection's next response is not that of the next request either."""
    ports = []

    def twice(exchange: httpserver.Exchange) -> None:
        ports.append(exchange.http.client_address[1])
        exchange.http.wfile.write(f"HTTP/1.1 {status} Wait\r\nLink: </x>\r\n\r\n".encode())
        exchange.http.wfile.flush()
        exchange.send(exchange.http.path.encode())

    with ScriptedServer(twice) as server:
        assert [get(f"{server.url}/{name}") for name in "abc"] == [b"/a", b"/b", b"/c"]
    assert len(set(ports)) == 1


def test_connection_that_switched_protocols_is_not_reused() -> None:
    ports = []

    def switch(exchange: httpserver.Exchange) -> None:
        ports.append(exchange.http.client_address[1])
        if exchange.http.path == "/switch":
            exchange.http.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n")
            exchange.http.wfile.flush()
        exchange.send(exchange.http.path.encode())

    with ScriptedServer(switch) as server:
        assert failure(f"{server.url}/switch").status == 101
        assert get(f"{server.url}/good") == b"/good"
    assert len(set(ports)) == 2


@pytest.mark.parametrize("status", [204, 304])
def test_chunked_response_without_a_body_is_empty(status: int) -> None:
    def empty(exchange: httpserver.Exchange) -> None:
        exchange.http.wfile.write(f"HTTP/1.1 {status} None\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        exchange.http.wfile.flush()

    with ScriptedServer(empty) as server:
        assert failure(server.url, 10).status == status


def test_repeated_headers_are_joined() -> None:
    def refuse(exchange: httpserver.Exchange) -> None:
        exchange.http.wfile.write(
            b'HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm="x"\r\n'
            b'WWW-Authenticate: Bearer error="invalid_token", error_description="it has expired"\r\n'
            b"Content-Length: 0\r\n\r\n"
        )
        exchange.http.wfile.flush()

    with ScriptedServer(refuse) as server:
        assert "it has expired" in str(failure(server.url))


def test_server_that_does_not_read_times_out_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted: list[socket.socket] = []

        def accept() -> None:
            with suppress(OSError):
                accepted.append(listener.accept()[0])

        thread = threading.Thread(target=accept)
        thread.start()
        started = time.monotonic()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/scoring"
        with pytest.raises(HttpError) as caught:
            http.post(url, bytes(50_000_000), deadline=started + 4, max_bytes=100)
        assert 3.5 < time.monotonic() - started < 4 + PATIENCE
        # A machine that is too slow to connect in time has sent no request.
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in accepted:
            connection.close()
    assert caught.value.reason == "timeout"


def test_expired_deadline_sends_no_request() -> None:
    with ScriptedServer(answer("x")) as server:
        assert failure(server.url, seconds=-1).reason == "timeout"
    assert server.requests == []


def test_connection_errors_may_be_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    refusal = failure(f"http://127.0.0.1:{port}/x?secret=1")
    assert (refusal.reason, refusal.retryable) == ("connection_failed", True)
    assert str(refusal) == f"GET http://127.0.0.1:{port}/x: Connection refused"
    with ScriptedServer(httpserver.close_early) as server:
        closed = failure(server.url)
    assert (closed.reason, closed.retryable) == ("connection_failed", True)
    unknown = failure("http://no-such-host.invalid/")
    assert (unknown.reason, unknown.retryable) == ("connection_failed", True)


@pytest.mark.parametrize("url", ["", "no url", "http://", "http://a b/", "ftp://host/x"])
def test_invalid_url_is_an_error_without_retry(url: str) -> None:
    error = failure(url)
    assert (error.reason, error.retryable) == ("connection_failed", False)


@pytest.mark.parametrize(
    ("status", "reason", "retryable"),
    [
        (204, "http_error", False),
        (301, "redirect", False),
        (307, "redirect", False),
        (400, "http_error", False),
        (401, "unauthorized", False),
        (403, "unauthorized", False),
        (404, "http_error", False),
        (408, "http_error", False),
        (429, "http_error", True),
        (500, "http_error", False),
        (502, "http_error", True),
        (503, "http_error", True),
        (504, "http_error", True),
    ],
)
def test_http_status_determines_whether_the_error_is_retryable(status: int, reason: str, retryable: bool) -> None:
    body = b"" if status == 204 else b"sorry\x1b[31m\n about that"
    with ScriptedServer(answer(body, status, Location="http://127.0.0.1:1/", Retry_After="7")) as server:
        error = failure(f"{server.url}/path?query=secret")
    assert (error.reason, error.retryable, error.status) == (reason, retryable, status)
    assert error.retry_after == (7 if retryable else None)
    if reason == "http_error" and body:
        assert str(error) == f"GET {server.url}/path: HTTP {status}: sorry [31m about that"
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [201, 202, 203, 206])
def test_unexpected_success_status_names_the_expected_one(status: int) -> None:
    with ScriptedServer(answer({"results": []}, status)) as server:
        error = failure(server.url)
    assert (error.reason, error.retryable, error.status) == ("http_error", False, status)
    assert (
        str(error) == f"GET {server.url}: HTTP {status}: only status 200 counts as a response; have the server send 200"
    )


@contextmanager
def _dead_address() -> Iterator[tuple[str, int]]:
    """An address that drops new connections, like that of a lost machine: its queue is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(listener.getsockname())
        yield listener.getsockname()


def test_dead_addresses_leave_time_for_a_live_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "CONNECT_TIMEOUT", 6.0)
    with _dead_address() as first, _dead_address() as second, ScriptedServer(answer("here")) as server:
        alive = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        monkeypatch.setattr(addresses, "resolve_allowed", lambda *_: [first, second, alive])
        assert get("http://three-addresses.example/", seconds=10) == b"here"


def test_endless_redirect_body_is_not_read() -> None:
    chunks_sent = []

    def redirect(exchange: httpserver.Exchange) -> None:
        exchange.start(302, None, Location="http://127.0.0.1:1/")
        for number in range(1024):
            exchange.http.wfile.write(bytes(1 << 20))
            chunks_sent.append(number)

    with ScriptedServer(redirect) as server:
        started = time.monotonic()
        assert failure(server.url).reason == "redirect"
        assert time.monotonic() - started < PATIENCE
    # The server can send only as much as fits into the buffers of a connection.
    assert len(chunks_sent) < 100


def test_token_echoed_by_the_server_is_masked_in_the_error() -> None:
    with ScriptedServer(answer(f"you sent {TOKEN}, go away", 403)) as server:
        error = failure(server.url, access=make_bearer_access(TOKEN))
    assert str(error).endswith("you sent ***, go away")


def test_body_in_pieces_is_sent_with_its_content_length() -> None:
    class Pieces:
        def __len__(self) -> int:
            return 300

        def __iter__(self) -> Iterator[memoryview]:
            for _ in range(3):
                yield memoryview(b"x" * 100)

    with ScriptedServer(answer("{}")) as server:
        http.post(server.url, Pieces(), deadline=time.monotonic() + 60, max_bytes=100, access=make_bearer_access(TOKEN))
    (request,) = server.requests
    assert request.body == b"x" * 300
    assert request.headers["Content-Length"] == "300"
    assert request.headers["Content-Type"] == "application/json"
    assert "Transfer-Encoding" not in request.headers


def test_host_alias_connects_to_another_server_under_the_same_name() -> None:
    with ScriptedServer(answer("here")) as server:
        access.set_aliases({"prometheus.test:9090": f"127.0.0.1:{server.port}"})
        try:
            assert get("http://prometheus.test:9090/x") == b"here"
            assert failure("http://prometheus.test:9091/x").reason == "connection_failed"
        finally:
            access.set_aliases({})
    assert server.requests[0].headers["Host"] == "prometheus.test:9090"


def test_invalid_alias_is_refused() -> None:
    with pytest.raises(ValueError, match="not <address>:<port>"):
        access.set_aliases({"prometheus:9090": "127.0.0.1"})
