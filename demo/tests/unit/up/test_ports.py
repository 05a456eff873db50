from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import pytest

from dsf.up.ports import LOCALHOST, Ports, is_free
from tests.support.child import run_program
from tests.support.redisserver import free_port


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.socket() as server:
        server.bind((LOCALHOST, 0))
        server.listen()
        yield int(server.getsockname()[1])


def test_preferred_port_is_used_if_it_is_free() -> None:
    messages: list[str] = []
    # The port is reserved, so no other test process gets it meanwhile.
    port = free_port()
    assert is_free(port)
    assert Ports(messages.append).choose(port, "the exporter") == port
    assert messages == []


def test_port_in_use_is_reported_and_avoided(listener: int) -> None:
    messages: list[str] = []
    port = Ports(messages.append).choose(listener, "the exporter")
    assert port != listener
    assert is_free(port)
    assert messages == [f"port {listener} is in use; the exporter gets port {port}"]


def test_ports_are_never_assigned_twice() -> None:
    ports = Ports(lambda _: None)
    first = ports.any()
    assert ports.choose(first, "another") != first
    assert len({ports.any() for _ in range(20)}) == 20


def test_two_demos_that_start_together_get_different_ports() -> None:
    """The demos do not listen yet, so a check of the port alone finds it free."""
    ports = Ports(lambda _: None)
    # The port is reserved, so no other test process gets it meanwhile.
    port = ports.choose(free_port(), "Flower")
    assert is_free(port)
    code = (
        "import sys\nfrom dsf.up.ports import Ports\nports = Ports(print)\n"
        "print(ports.choose(int(sys.argv[1]), 'Flower'))"
    )
    command = [sys.executable, "-c", code, str(port)]
    other = run_program(command, check=True).stdout.splitlines()
    assert other == [f"port {port} is in use; Flower gets port {other[1]}", other[1]]
    assert other[1] != str(port)
    del ports
    assert run_program(command, check=True).stdout == f"{port}\n"
