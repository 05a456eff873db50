"""Hundreds of clients without a login that are slow: memory stays within the pod's limit, and others are answered."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dsf.http import serving
from tests.integration.exporter.server import ExporterProcess
from tests.support.redisserver import RedisServer
from tests.support.webprocess import HttpProcess, WebProcess

CLIENTS = 500
#: Memory limits of the chart's pods (resources of `web` and `exporter`).
LIMITS = {"web": 256 * 2**20, "exporter": 512 * 2**20}
#: The largest file that is served without a login.
FILE = "/docs/swagger-ui-bundle.js"
KINDS: dict[str, Callable[[str, Path], HttpProcess]] = {"web": WebProcess, "exporter": ExporterProcess}


@pytest.fixture(scope="module", params=KINDS)
def service(
    request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, HttpProcess]]:
    with KINDS[request.param](redis_server.url, tmp_path_factory.mktemp("slow") / "log") as process:
        yield request.param, process


def _memory(process: HttpProcess) -> int:
    assert process.process is not None
    return int(psutil.Process(process.process.pid).memory_info().rss)


@contextlib.contextmanager
def _clients(port: int, number: int, sent: bytes) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        made: list[socket.socket] = []
        for _ in range(number):
            client = stack.enter_context(socket.socket())
            # Little of an answer waits in the kernel.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(30)
            client.connect(("127.0.0.1", port))
            with contextlib.suppress(ConnectionError):
                client.sendall(sent)
            made.append(client)
        yield made


def test_readers_that_are_slow_hold_little(service: tuple[str, HttpProcess]) -> None:
    name, process = service
    whole = process.get(FILE, **{"Accept-Encoding": "identity"}).content
    # Not compressed, which is more.
    request = f"GET {FILE} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: identity\r\n\r\n"
    most = 0
    with _clients(process.port, CLIENTS, request.encode()) as clients:
        for _ in range(3):
            for client in clients:
                client.settimeout(0)
                with contextlib.suppress(OSError):
                    client.recv(1024)
            most = max(most, _memory(process))
            assert process.get(FILE, **{"Accept-Encoding": "identity"}).content == whole
    assert most < LIMITS[name]


def test_bodies_that_do_not_come_keep_nobody_out(service: tuple[str, HttpProcess]) -> None:
    _, process = service
    half = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    half += b"Content-Length: 100\r\n\r\ntoken="
    with _clients(process.port, serving.MOST_CONNECTIONS + 50, half):
        for _ in range(3):
            assert process.get("/healthz").status_code == 200
