"""Servers that listen everywhere accept IPv4 and IPv6, and IPv4 alone on hosts without IPv6."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry

from dsf.errors import SettingsError
from dsf.http.listening import Listener
from dsf.http.probes import make_probes
from dsf.http.serving import HttpServer
from dsf.otlp.received import Received
from dsf.otlp.receiver import Receiver
from dsf.settings import ALL_ADDRESSES, Settings
from dsf.sources.window import WindowBudget
from tests.support.redisserver import free_port, has_ipv6

BOTH = ("127.0.0.1", "::1")

needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@contextlib.contextmanager
def exposition(host: str) -> Iterator[int]:
    """The server of hub's and agent's metrics and probes."""
    server = HttpServer(make_probes(CollectorRegistry(), {}), host, free_port(), name="metrics")
    server.start()
    try:
        yield server.address[1]
    finally:
        server.stop()


@contextlib.contextmanager
def receiver(host: str) -> Iterator[int]:
    """The agent's OTLP receiver."""
    server = Receiver(Received(WindowBudget(1, 1), dict), host, free_port(), max_bytes=1000)
    server.start()
    try:
        yield server.address[1]
    finally:
        server.stop()


@contextlib.contextmanager
def listener(host: str) -> Iterator[int]:
    """The socket of hub and optimiser."""
    # The port is chosen for all addresses: a port that is free at ::1 may be in use at 127.0.0.1.
    with Listener(host, free_port()) as listening:
        yield listening.getsockname()[1]


SERVERS = pytest.mark.parametrize("server", [exposition, receiver, listener])
Server = Callable[[str], contextlib.AbstractContextManager[int]]


def is_reached(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=300).close()
    except ConnectionRefusedError:
        return False
    return True


@needs_ipv6
@SERVERS
def test_both_families_are_served(server: Server) -> None:
    with server(ALL_ADDRESSES) as port:
        assert [is_reached(address, port) for address in BOTH] == [True, True]


@SERVERS
def test_listener_uses_ipv4_without_ipv6(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with server(ALL_ADDRESSES) as port:
        assert is_reached("127.0.0.1", port)


@needs_ipv6
@SERVERS
def test_single_listen_address_accepts_its_family_only(server: Server) -> None:
    for address in BOTH:
        with server(address) as port:
            assert [is_reached(candidate, port) for candidate in BOTH] == [candidate == address for candidate in BOTH]


def test_occupied_ipv4_port_is_reported() -> None:
    with socket.create_server(("0.0.0.0", 0)) as occupied_socket:
        port = occupied_socket.getsockname()[1]
        with pytest.raises(SettingsError, match=f"DSF_LISTEN_PORT: cannot listen on :::{port}"):
            Listener(ALL_ADDRESSES, port)


def test_listen_address_default_is_everywhere_for_agents_only(settings_factory: Callable[..., Settings]) -> None:
    assert settings_factory(role="agent").listen_address() == (ALL_ADDRESSES, 8080)
    assert settings_factory(role="hub").listen_address() == ("127.0.0.1", 8080)
    assert settings_factory().listen_address(8338) == ("127.0.0.1", 8338)
    assert settings_factory(listen_host="::1", listen_port=0).listen_address() == ("::1", 0)
