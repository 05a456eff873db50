"""Hundreds of clients without a login that are slow: memory stays within the pod's limit, and others are answered."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import psutil
import pytest
import redis
import requests

from dsf.http.listening import MAX_CONNECTIONS
from tests.support.redisserver import RedisServer, free_port
from tests.support.webprocess import HttpProcess, WebProcess

CLIENTS = 500
#: Memory limit of the smallest pod with the page.
MEMORY_LIMIT = 256 * 2**20
#: The largest file that is served without a login.
LARGE_FILE = "/docs/swagger-ui-bundle.js"


@pytest.fixture(scope="module")
def process(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    # Readiness depends on the fleet in Redis; remove what other tests left.
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    with WebProcess(redis_server.url, tmp_path_factory.mktemp("slow") / "log", probe_port=free_port()) as page:
        yield page


def _memory(process: HttpProcess) -> int:
    assert process.process is not None
    return int(psutil.Process(process.process.pid).memory_info().rss)


@contextlib.contextmanager
def _clients(port: int, number: int, request_bytes: bytes, address: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """Connect this number of clients from one address."""
    with contextlib.ExitStack() as stack:
        clients: list[socket.socket] = []
        for _ in range(number):
            client = stack.enter_context(socket.socket())
            # A small buffer, so that the server has to hold the response.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(30)
            client.bind((address, 0))
            client.connect(("127.0.0.1", port))
            with contextlib.suppress(ConnectionError):
                client.sendall(request_bytes)
            clients.append(client)
        yield clients


def _is_open(client: socket.socket) -> bool:
    client.settimeout(0)
    try:
        return client.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


REQUEST_WITH_UNFINISHED_BODY = (
    b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 100\r\n\r\ntoken="
)


def test_slow_readers_hold_little_memory(process: WebProcess) -> None:
    whole = process.get(LARGE_FILE, **{"Accept-Encoding": "identity"}).content
    # The response is not compressed, so that it is larger.
    request = f"GET {LARGE_FILE} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: identity\r\n\r\n"
    peak = 0
    with _clients(process.port, CLIENTS, request.encode()) as clients:
        for _ in range(3):
            for client in clients:
                client.settimeout(0)
                with contextlib.suppress(OSError):
                    client.recv(1024)
            peak = max(peak, _memory(process))
            assert process.get(LARGE_FILE, **{"Accept-Encoding": "identity"}).content == whole
    assert peak < MEMORY_LIMIT


@pytest.mark.parametrize("request_bytes", [REQUEST_WITH_UNFINISHED_BODY, b"GET / HTTP/1.1\r\nHost: ", b""])
def test_unfinished_requests_compete_with_each_other_only(process: WebProcess, request_bytes: bytes) -> None:
    with _clients(process.port, 3, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "127.0.0.2") as idle_clients:
        for client in idle_clients:
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
        # Twice as many as the server accepts: the later connections replace earlier ones of their own address.
        with _clients(process.port, 2 * MAX_CONNECTIONS, request_bytes, "127.0.0.3"):
            for _ in range(3):
                assert process.get("/healthz").status_code == 200
            assert all(_is_open(client) for client in idle_clients)


def test_probes_and_own_metrics_are_answered_beside_a_crowd(process: WebProcess) -> None:
    probes = f"http://127.0.0.1:{process.settings['probe_port']}"
    with _clients(process.port, 2 * MAX_CONNECTIONS, REQUEST_WITH_UNFINISHED_BODY):
        for path in ("/healthz", "/readyz", "/metrics"):
            response = requests.get(probes + path, timeout=30)
            assert response.status_code == 200, f"{path}: {response.text}"


def test_long_header_in_pieces_is_read(process: WebProcess) -> None:
    header = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nCookie: a=" + b"x" * 20_000 + b"\r\n\r\n"
    with socket.create_connection(("127.0.0.1", process.port), 30) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(header), 1400):
            client.sendall(header[start : start + 1400])
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
