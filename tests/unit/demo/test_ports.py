from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from dsf.demo.ports import LOCALHOST, Ports, is_free


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.socket() as server:
        server.bind((LOCALHOST, 0))
        server.listen()
        yield int(server.getsockname()[1])


def test_the_preferred_port_if_it_is_free() -> None:
    said: list[str] = []
    ports = Ports(said.append)
    port = ports.any()
    assert is_free(port)
    assert Ports(said.append).choose(port, "the exporter") == port
    assert said == []


def test_a_port_in_use_is_said_and_avoided(listener: int) -> None:
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
