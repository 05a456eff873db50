from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import pytest

from dsf.up.ports import LOCALHOST, Ports, is_free
from tests.support.child import ran
from tests.support.redisserver import free_port


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.socket() as server:
        server.bind((LOCALHOST, 0))
        server.listen()
        yield int(server.getsockname()[1])


def test_the_preferred_port_if_it_is_free() -> None:
    said: list[str] = []
    # None that another test process is given meanwhile.
    port = free_port()
    assert is_free(port)
    assert Ports(said.append).choose(port, "the exporter") == port
    assert said == []


def test_port_in_use_is_reported_and_avoided(listener: int) -> None:
    said: list[str] = []
    port = Ports(said.append).choose(listener, "the exporter")
    assert port != listener
    assert is_free(port)
    assert said == [f"port {listener} is in use; the exporter gets port {port}"]


def test_no_port_is_given_twice() -> None:
    ports = Ports(lambda _: None)
    first = ports.any()
    assert ports.choose(first, "another") != first
    assert len({ports.any() for _ in range(20)}) == 20


def test_two_demos_that_start_together_get_different_ports() -> None:
    """Neither listens yet, so a look at the port alone finds it free."""
    mine = Ports(lambda _: None)
    # None that another test process is given meanwhile.
    port = mine.choose(free_port(), "Flower")
    assert is_free(port)
    code = (
        "import sys\nfrom dsf.up.ports import Ports\nports = Ports(print)\n"
        "print(ports.choose(int(sys.argv[1]), 'Flower'))"
    )
    command = [sys.executable, "-c", code, str(port)]
    other = ran(command, check=True).stdout.splitlines()
    assert other == [f"port {port} is in use; Flower gets port {other[1]}", other[1]]
    assert other[1] != str(port)
    del mine
    assert ran(command, check=True).stdout == f"{port}\n"
