"""The server of /metrics and probes, also with many silent clients."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.registry import Collector

from dsf.http.listening import MAX_CONNECTIONS
from dsf.http.probes import make_probes
from dsf.http.serving import HttpServer


def fail() -> str:
    raise ValueError("a mistake")


@pytest.fixture
def url() -> Iterator[str]:
    registry = CollectorRegistry()
    Gauge("answer", "Of everything.", registry=registry).set(42)
    checks = {"/healthz": lambda: "", "/readyz": lambda: "Redis is away", "/broken": fail}
    server = HttpServer(make_probes(registry, checks), "127.0.0.1", 0, name="probes")
    server.start()
    yield f"http://127.0.0.1:{server.address[1]}"
    server.stop()


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/nothing"])
def test_head_is_answered_as_get_without_a_body(url: str, path: str) -> None:
    response, head_response = requests.get(url + path, timeout=300), requests.head(url + path, timeout=300)
    assert (head_response.status_code, head_response.content) == (response.status_code, b"")
    assert head_response.headers["content-type"] == response.headers["content-type"]


def test_failed_check_gives_503_and_an_error_500(url: str) -> None:
    response = requests.get(f"{url}/readyz", timeout=300)
    assert (response.status_code, response.text) == (503, "Redis is away\n")
    assert requests.get(f"{url}/broken", timeout=300).status_code == 500


def test_silent_clients_block_no_other_client(url: str) -> None:
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    clients = [socket.create_connection(address, 30) for _ in range(MAX_CONNECTIONS + 40)]
    try:
        assert "answer 42.0" in requests.get(f"{url}/metrics", timeout=300).text
        # The first ones were replaced by later ones.
        assert clients[0].recv(1) == b""
    finally:
        for client in clients:
            client.close()


def test_scrapes_leave_threads_for_checks() -> None:
    """A scrape of many series takes seconds, and another one must not begin meanwhile: both take much memory."""
    go_on, is_read = threading.Event(), threading.Event()

    class SlowCollector(Collector):
        readings = 0

        def collect(self) -> Iterable[Metric]:
            self.readings += 1
            is_read.set()
            assert go_on.wait(60)
            return []

    registry, collector = CollectorRegistry(), SlowCollector()
    registry.register(collector)
    server = HttpServer(make_probes(registry, {"/healthz": lambda: ""}), "127.0.0.1", 0, name="probes")
    server.start()
    try:
        url = f"http://127.0.0.1:{server.address[1]}"
        # More than the threads of an event loop.
        with ThreadPoolExecutor(40) as pool:
            scrapes = [pool.submit(requests.get, f"{url}/metrics", timeout=300) for _ in range(40)]
            try:
                assert is_read.wait(60)
                assert requests.get(f"{url}/healthz", timeout=30).text == "ok\n"
            finally:
                go_on.set()
            assert {scrape.result().status_code for scrape in scrapes} == {200}
        assert collector.readings < len(scrapes)
    finally:
        server.stop()
