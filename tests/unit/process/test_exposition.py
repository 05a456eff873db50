"""The server of /metrics with slow, silent or many clients."""

from __future__ import annotations

import select
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import requests
from prometheus_client import CollectorRegistry, Gauge

from dsf.process import connections
from dsf.process.exposition import MetricsServer
from dsf.process.threads import background
from tests.support.wait import wait_for


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    registry = CollectorRegistry()
    Gauge("answer", "Of everything.", registry=registry).set(42)
    metrics_server = MetricsServer(registry, "127.0.0.1", 0)
    metrics_server.start()
    yield metrics_server
    metrics_server.stop()


def page(server: MetricsServer) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=300) as answer:
        return str(answer.read().decode())


def connect(server: MetricsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), 30)


def test_stop_does_not_wait_forever_for_a_blocked_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "END_SECONDS", 0.1)
    inside, go_on, stopped = threading.Event(), threading.Event(), threading.Event()

    class HeldUp(connections.BoundedServer):
        def service_actions(self) -> None:
            inside.set()
            go_on.wait(60)

    held_up = connections.InThread(HeldUp(("127.0.0.1", 0), connections.TimedHandler), "held-up")
    held_up.start()
    assert inside.wait(30)
    background(lambda: (held_up.stop(), stopped.set()), "stop")
    try:
        assert stopped.wait(30)
    finally:
        go_on.set()


def test_silent_clients_block_no_other_client_and_log_no_lines(
    server: MetricsServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    silence = 0.5
    monkeypatch.setattr(connections.TimedHandler, "silence", silence)

    def page_in_time() -> str:
        """Retry if this machine took longer than the limit to send the request."""
        while True:
            began = time.monotonic()
            try:
                return page(server)
            except OSError:
                if time.monotonic() - began < silence:
                    raise

    clients = [connect(server) for _ in range(300)]
    assert "answer 42.0" in page_in_time()
    # All connections are closed in time without a response.
    for client in clients:
        assert client.recv(1) == b""
        client.close()
    assert "answer 42.0" in page_in_time()
    assert "Traceback" not in "".join(capfd.readouterr())


def test_dripping_request_head_is_cut_silently(
    server: MetricsServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    with connect(server) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")

        def is_cut() -> bool:
            try:
                slow.sendall(b"x")
                return bool(select.select([slow], [], [], 0.05)[0]) and slow.recv(1) == b""
            except OSError:
                return True

        wait_for(is_cut, 30, "the client is cut")
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/nothing"])
def test_head_is_answered_as_get_without_a_body(server: MetricsServer, path: str) -> None:
    address = f"http://127.0.0.1:{server.port}{path}"
    with requests.Session() as session:
        session.trust_env = False
        got, headed = session.get(address, timeout=300), session.head(address, timeout=300)
    assert (headed.status_code, headed.content) == (got.status_code, b"")
    assert headed.headers["content-type"] == got.headers["content-type"]


@pytest.mark.parametrize(
    "lines",
    [
        b"Authorization: Bearer a\r\nauthorization: Bearer b\r\n",
        b"Content-Length: 1\r\nContent-Length: 2\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n",
    ],
)
def test_duplicate_header_is_refused(server: MetricsServer, lines: bytes) -> None:
    with connect(server) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n")
        assert client.recv(100).split()[1] == b"400"


def test_internal_error_is_logged_once(capfd: pytest.CaptureFixture[str]) -> None:
    def broken() -> str:
        raise ValueError("a mistake")

    metrics_server = MetricsServer(CollectorRegistry(), "127.0.0.1", 0, {"/healthz": broken})
    metrics_server.start()
    try:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{metrics_server.port}/healthz", timeout=300)
        assert caught.value.code == 500
        caught.value.close()
    finally:
        metrics_server.stop()
    assert "a mistake" in "".join(capfd.readouterr())
