"""Exchanges are ended at their deadline; other connections remain open."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from dsf.http.deadline import Exchange, assign_exchange_owner, end_exchanges, watch_exchange
from dsf.http.transport import BoundedResponse

#: Seconds of a deadline that no test waits for.
_FAR = 60.0


class Pair:
    """An exchange with a connection, and the server side of that connection."""

    def __init__(self, opened: ExitStack, seconds: float) -> None:
        self.client, self.server = (opened.enter_context(end) for end in socket.socketpair())
        self.exchange = Exchange(time.monotonic() + seconds, 100)
        self.exchange.attach_socket(self.client)
        # The time-out of the socket is not tested here.
        self.client.settimeout(_FAR)

    @property
    def is_open(self) -> bool:
        self.server.sendall(b"x")
        return self.client.recv(1) == b"x"


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_expired_exchange_ends_while_others_continue(opened: ExitStack) -> None:
    early, late = Pair(opened, 0.2), Pair(opened, _FAR)
    with watch_exchange(late.exchange), watch_exchange(early.exchange):
        # The thread already waits for the late exchange when the early one starts.
        assert early.client.recv(1) == b""
        with pytest.raises(TimeoutError):
            early.exchange.require_remaining_seconds()
        assert late.is_open


def test_connection_of_a_finished_exchange_is_not_closed(opened: ExitStack) -> None:
    over, next_one = Pair(opened, 0.2), Pair(opened, 0.4)
    with watch_exchange(over.exchange):
        pass
    with watch_exchange(next_one.exchange):
        assert next_one.client.recv(1) == b""
    assert over.exchange.deadline < time.monotonic()
    assert over.is_open


@dataclass(eq=False)
class Owner:
    deadline: float


def test_cut_ends_only_exchanges_of_its_owner(opened: ExitStack) -> None:
    cut_owner, other = Owner(time.monotonic() + _FAR), Owner(time.monotonic() + _FAR)
    pairs = []
    for owner in (cut_owner, other):
        with assign_exchange_owner(owner):
            pairs.append(Pair(opened, _FAR))
    with watch_exchange(pairs[0].exchange), watch_exchange(pairs[1].exchange):
        end_exchanges(cut_owner)
        assert pairs[0].client.recv(1) == b""
        with pytest.raises(TimeoutError):
            pairs[0].exchange.require_remaining_seconds()
        assert pairs[1].is_open


def test_socket_opened_after_the_deadline_is_refused(opened: ExitStack) -> None:
    with pytest.raises(TimeoutError):
        Pair(opened, -0.1)


def test_response_that_starts_too_late_leaves_no_open_socket() -> None:
    client_socket, peer_socket = socket.socketpair()
    with pytest.raises(TimeoutError) as late, watch_exchange(Exchange(time.monotonic() - 1, 10)):
        BoundedResponse(client_socket)
    client_socket.close()
    peer_socket.close()
    # The socket is closed although the error, which refers to it, is kept.
    assert late.value.__traceback__ is not None
    assert client_socket.fileno() == -1


@pytest.mark.parametrize(("own_deadline", "owner_deadline", "expected"), [(5.0, 7.0, 5.0), (7.0, 5.0, 5.0)])
def test_exchange_ends_with_its_owner(own_deadline: float, owner_deadline: float, expected: float) -> None:
    with assign_exchange_owner(Owner(owner_deadline)):
        assert Exchange(own_deadline, 100).deadline == expected
    assert Exchange(own_deadline, 100).deadline == own_deadline
