"""Connections that are kept between cycles, and devices that drop them meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsf import http
from dsf.errors import HttpError
from dsf.http import transport
from tests.support import httpserver
from tests.support.forgetfulrelay import ForgetfulRelay
from tests.support.httpserver import ScriptedServer, answer

#: Seconds until the relay forgets a connection, and from one request to the next.
_FORGETS = 0.5
_INTERVAL = 1.0


@pytest.fixture(autouse=True)
def _close_connections() -> Iterator[None]:
    yield
    transport.close()


def _ask(url: str, body: bytes | None) -> bytes:
    # A request on a connection that is dead takes until the deadline.
    deadline = time.monotonic() + 20
    if body is None:
        return http.get(url, deadline=deadline, max_bytes=1_000_000)
    return http.post(url, body, deadline=deadline, max_bytes=1_000_000)


@pytest.mark.parametrize("body", [None, b"{}"], ids=["get", "post"])
def test_reset_idle_connection_is_replaced_without_an_error(body: bytes | None) -> None:
    with ScriptedServer(answer("hello")) as server, ForgetfulRelay(server.port, _FORGETS, resets=True) as relay:
        for _ in range(3):
            assert _ask(relay.url, body) == b"hello"
            time.sleep(_INTERVAL)
    assert (relay.forgotten, relay.connections) == (2, 3)


def test_repeated_request_opens_a_new_connection() -> None:
    gate = threading.Barrier(4)

    def ask_at_once(url: str) -> bytes:
        gate.wait(30)
        return _ask(url, None)

    def close(_: int) -> None:
        gate.wait(30)
        transport.close()

    # Four requests at a time, so that four connections are kept.
    with (
        ScriptedServer(answer("hello")) as server,
        ForgetfulRelay(server.port, _FORGETS, resets=True) as relay,
        ThreadPoolExecutor(4) as pool,
    ):
        for _ in range(3):
            assert list(pool.map(ask_at_once, [relay.url] * 4)) == [b"hello"] * 4
            time.sleep(_INTERVAL)
        list(pool.map(close, range(4)))


def test_idle_connection_is_not_reused_after_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "IDLE_SECONDS", _FORGETS / 2)
    with ScriptedServer(answer("hello")) as server, ForgetfulRelay(server.port, _FORGETS, resets=False) as relay:
        for _ in range(3):
            assert _ask(relay.url, None) == b"hello"
            time.sleep(_INTERVAL)
    assert (relay.forgotten, relay.connections) == (0, 3)


def test_failure_of_a_new_connection_is_not_repeated() -> None:
    with ScriptedServer(httpserver.close_early) as server:
        with pytest.raises(HttpError) as caught:
            _ask(server.url, b"{}")
        assert (caught.value.reason, caught.value.retryable) == ("connection_failed", True)
        assert server.connections == 1


def test_failure_of_a_kept_connection_is_repeated_once() -> None:
    def answer_once_then_close(exchange: httpserver.Exchange) -> None:
        if exchange.http.path == "/good":
            exchange.send(b"hello")
        else:
            httpserver.close_early(exchange)

    with ScriptedServer(answer_once_then_close) as server:
        assert _ask(f"{server.url}/good", None) == b"hello"
        with pytest.raises(HttpError):
            _ask(f"{server.url}/bad", None)
        assert [request.path for request in server.requests] == ["/good", "/bad", "/bad"]


def test_failure_after_a_part_of_the_response_is_not_repeated() -> None:
    def half(exchange: httpserver.Exchange) -> None:
        if exchange.http.path == "/good":
            exchange.send(b"hello")
        else:
            httpserver.send_half(exchange)

    with ScriptedServer(half) as server:
        assert _ask(f"{server.url}/good", None) == b"hello"
        with pytest.raises(HttpError) as caught:
            _ask(f"{server.url}/half", None)
        assert caught.value.reason == "truncated"
        assert [request.path for request in server.requests] == ["/good", "/half"]
