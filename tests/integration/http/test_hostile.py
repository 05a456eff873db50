"""Whatever a server answers, agents and hub end in time, in bounded memory, with a reason."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from dsf import http
from dsf.api.types import ConfigSyncMode
from dsf.errors import HttpError
from dsf.http import addresses, transport
from dsf.http.access import Access, TlsOptions
from dsf.hub import health
from tests.integration.http.hostile import CHUNKED, MAX_BYTES, TABLE, Hostile, RawServer, tickets
from tests.support.httpserver import ScriptedServer, answer
from tests.support.tlsca import TestCa
from tests.support.wait import PATIENCE

#: Seconds of an exchange; longer if they were over before the request, because the machine may be busy.
_SECONDS = (0.4, 2.0, 10.0, 60.0)
#: Seconds that floods have, which end by their size: a million chunks of one byte take seconds of CPU.
_FLOOD_SECONDS = 150.0
#: Bytes that an exchange may need: compressed and decompressed data, in pieces and joined, and the server's data.
_MEMORY = 40 * MAX_BYTES

Ask = Callable[[str, float], object]


def _get(url: str, deadline: float) -> object:
    return http.get(url, deadline=deadline, max_bytes=MAX_BYTES)


def _post(url: str, deadline: float) -> object:
    return http.post(url, b"{}", deadline=deadline, max_bytes=MAX_BYTES)


def _probe(url: str, deadline: float) -> object:
    return http.probe(url, deadline=deadline, max_bytes=MAX_BYTES)


@pytest.fixture(autouse=True)
def _close_connections() -> Iterator[None]:
    yield
    transport.close()


#: Rows that are tried with every method, because all methods read responses in the same way.
_EACH_WAY = ("headers never end", "chunks drip", "chunks for ever", "gzip cut off", "closed at once", "redirect")


def _ways() -> Iterator[Any]:
    for row in TABLE:
        yield pytest.param(row, _get, id=f"{row.name}-get")
        if row.name in _EACH_WAY:
            yield pytest.param(row, _post, id=f"{row.name}-post")
            yield pytest.param(row, _probe, id=f"{row.name}-probe")


@pytest.mark.parametrize(("row", "ask"), list(_ways()))
def test_hostile_response_fails_with_its_reason_within_time_and_memory(row: Hostile, ask: Ask) -> None:
    process = psutil.Process()
    for seconds in _SECONDS if row.reason == "timeout" else (_FLOOD_SECONDS,):
        with RawServer(row.payload) as server:
            before = process.memory_info().rss
            started = time.monotonic()
            with pytest.raises(HttpError) as caught:
                ask(f"{server.url}/x?secret=1", started + seconds)
            assert time.monotonic() - started < seconds + PATIENCE
            assert process.memory_info().rss - before < _MEMORY
        if server.asked:
            break
    assert (caught.value.reason, caught.value.retryable) == (row.reason, row.retryable), str(caught.value)
    assert row.text in str(caught.value)
    assert "secret" not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("row", [row for row in TABLE if row.name in _EACH_WAY], ids=lambda row: row.name)
def test_hostile_response_fails_the_health_check_with_a_message(row: Hostile) -> None:
    with RawServer(row.payload) as server:
        target = health.HealthTarget(f"{server.url}/config", ConfigSyncMode.Full)
        seconds = 0.4 if row.reason == "timeout" else _FLOOD_SECONDS
        health_failure = health.check(target, timeout=seconds).health_failure
    assert health_failure is not None
    assert health_failure.message.startswith(f"GET {server.url}/")
    assert row.text.replace(str(MAX_BYTES), str(health.MAX_BYTES)) in health_failure.message


def test_small_chunks_are_joined_before_they_are_kept() -> None:
    """Each chunk of two bytes would take 60 bytes, and the body of a scoring API has up to 8 MB."""
    pieces: list[bytes] = []
    payload = CHUNKED + b"2\r\nab\r\n" * 100_000 + b"0\r\n\r\n"
    with RawServer(lambda: iter([payload])) as server:
        http.get(server.url, deadline=time.monotonic() + _FLOOD_SECONDS, max_bytes=MAX_BYTES, sink=pieces.append)
    assert b"".join(pieces) == b"ab" * 100_000
    assert len(pieces) <= 4


def test_deadline_applies_to_compressed_bytes_already_received() -> None:
    # Everything is in the socket's buffer already, so that only the work on it takes time.
    row = next(row for row in TABLE if row.name == "gzip bomb of members")
    with RawServer(row.payload) as server, pytest.raises(HttpError) as caught:
        http.get(server.url, deadline=time.monotonic() + 0.05, max_bytes=1 << 40)
    assert caught.value.reason == "timeout"


def test_endless_tls_tickets_time_out_at_the_deadline(tmp_path: Path) -> None:
    certificate = TestCa(tmp_path).issue("127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=tickets, args=(listener, certificate, tmp_path / "secrets"))
        server.start()
        ask = partial(http.get, f"https://127.0.0.1:{listener.getsockname()[1]}/", max_bytes=MAX_BYTES)
        started = time.monotonic()
        with pytest.raises(HttpError) as caught:
            ask(deadline=started + 2, access=Access(tls=TlsOptions(verify=False)))
        assert caught.value.reason == "timeout"
        assert time.monotonic() - started < 2 + PATIENCE
        server.join()


def test_hanging_name_server_times_out_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: over.wait(300))
    started = time.monotonic()
    for ask in (_get, _probe):
        with pytest.raises(HttpError) as caught:
            ask("http://names.test/x", time.monotonic() + 2)
        assert (caught.value.reason, caught.value.retryable) == ("timeout", True)
    assert time.monotonic() - started < PATIENCE
    over.set()


@pytest.mark.parametrize("ask", [_get, _post, _probe], ids=["agent-get", "agent-post", "hub"])
@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://a..b/config", "the host name is invalid"),
        ("https://[:]", "not a URL"),
        ("http://[::1", "not a URL"),
        ("http://" + "a" * 300 + "/x", "the host name is invalid"),
        ("http://host:99999/x", "not a URL"),
    ],
)
def test_impossible_hosts_are_not_retried(ask: Ask, url: str, text: str) -> None:
    with pytest.raises(HttpError) as caught:
        ask(url, time.monotonic() + 60)
    assert (caught.value.reason, caught.value.retryable) == ("connection_failed", False)
    assert text in str(caught.value)


@pytest.mark.parametrize("ask", [_get, _post, _probe], ids=["agent-get", "agent-post", "hub"])
@pytest.mark.parametrize("host", ["169.254.169.254", "[::ffff:169.254.169.254]", "[fd00:ec2::254]", "100.100.100.200"])
def test_metadata_addresses_are_never_requested(ask: Ask, host: str) -> None:
    with pytest.raises(HttpError, match="DSF_ALLOW_LINK_LOCAL=true") as caught:
        ask(f"http://{host}/latest/meta-data", time.monotonic() + 60)
    assert (caught.value.reason, caught.value.retryable) == ("address_refused", False)


_getaddrinfo = socket.getaddrinfo


def _name_server(monkeypatch: pytest.MonkeyPatch, look_up: Callable[..., object]) -> None:
    """Resolve names; an address stands for itself, as everywhere."""

    def either(host: str, *arguments: Any, **options: Any) -> object:
        return (_getaddrinfo if host[0].isdigit() else look_up)(host, *arguments, **options)

    monkeypatch.setattr("socket.getaddrinfo", either)


def test_refused_address_is_checked_at_each_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    responses = [[(2, 1, 6, "", ("127.0.0.1", 9))], [(2, 1, 6, "", ("169.254.169.254", 80))]]
    _name_server(monkeypatch, lambda *_, **__: responses.pop(0))
    ask = partial(http.get, "http://rebinding.test:9/", max_bytes=100)
    reasons = []
    for _ in range(2):
        with pytest.raises(HttpError) as caught:
            ask(deadline=time.monotonic() + 60)
        reasons.append(caught.value.reason)
    assert reasons == ["connection_failed", "address_refused"]


@pytest.mark.parametrize("ask", [_get, _post, _probe], ids=["agent-get", "agent-post", "hub"])
def test_checked_address_is_the_one_connected_to(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        ScriptedServer(answer("good")) as checked_server,
        socket.create_server(("127.0.0.2", checked_server.port)) as secret,
    ):
        # In place of a metadata service, on whose address no program can listen here.
        monkeypatch.setattr(addresses, "_METADATA_NETWORKS", (ipaddress.ip_network("127.0.0.2"),))
        first, then = ((2, 1, 6, "", (address, checked_server.port)) for address in ("127.0.0.1", "127.0.0.2"))
        looked_up: list[str] = []

        def look_up(host: str, *_: object, **__: object) -> object:
            looked_up.append(host)
            return [first] if len(looked_up) == 1 else [then]

        _name_server(monkeypatch, look_up)
        url = f"http://rebinding.test:{checked_server.port}/"
        ask(url, time.monotonic() + 30)
        assert (looked_up, checked_server.connections) == (["rebinding.test"], 1)
        transport.close()
        _name_server(monkeypatch, lambda *_, **__: [first, then])
        for _ in range(2):
            with pytest.raises(HttpError, match=r"resolves to 127\.0\.0\.2") as caught:
                ask(url, time.monotonic() + 30)
            assert caught.value.reason == "address_refused"
            _name_server(monkeypatch, look_up)
        assert checked_server.connections == 1
        secret.setblocking(False)
        with pytest.raises(BlockingIOError):
            secret.accept()
