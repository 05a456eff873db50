"""Which exchange is ended at its deadline, and which connection is left alone."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from dsf.http.deadline import Exchange, cut, made_for, running
from dsf.http.transport import BoundedResponse

#: Seconds of a deadline that no test waits for.
_FAR = 60.0


class Pair:
    """An exchange with a connection, and the server's end of it."""

    def __init__(self, opened: ExitStack, seconds: float) -> None:
        self.own, self.server = (opened.enter_context(end) for end in socket.socketpair())
        self.exchange = Exchange(time.monotonic() + seconds, 100)
        self.exchange.use(self.own)
        # What the time-out of the socket does is not tested here.
        self.own.settimeout(_FAR)

    @property
    def is_open(self) -> bool:
        self.server.sendall(b"x")
        return self.own.recv(1) == b"x"


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_the_one_whose_time_is_up_is_ended_while_others_go_on(opened: ExitStack) -> None:
    early, late = Pair(opened, 0.2), Pair(opened, _FAR)
    with running(late.exchange), running(early.exchange):
        # The thread waits for the late one when the early one begins.
        assert early.own.recv(1) == b""
        with pytest.raises(TimeoutError):
            early.exchange.remaining()
        assert late.is_open


def test_the_connection_of_one_that_is_over_is_left_alone(opened: ExitStack) -> None:
    over, next_one = Pair(opened, 0.2), Pair(opened, 0.4)
    with running(over.exchange):
        pass
    with running(next_one.exchange):
        assert next_one.own.recv(1) == b""
    assert over.exchange.deadline < time.monotonic()
    assert over.is_open


@dataclass(eq=False)
class Owner:
    deadline: float


def test_cut_ends_only_exchanges_of_its_owner(opened: ExitStack) -> None:
    ended, other = Owner(time.monotonic() + _FAR), Owner(time.monotonic() + _FAR)
    pairs = []
    for owner in (ended, other):
        with made_for(owner):
            pairs.append(Pair(opened, _FAR))
    with running(pairs[0].exchange), running(pairs[1].exchange):
        cut(ended)
        assert pairs[0].own.recv(1) == b""
        with pytest.raises(TimeoutError):
            pairs[0].exchange.remaining()
        assert pairs[1].is_open


def test_socket_opened_after_the_deadline_is_refused(opened: ExitStack) -> None:
    with pytest.raises(TimeoutError):
        Pair(opened, -0.1)


def test_an_answer_that_begins_too_late_holds_no_socket_open() -> None:
    ours, theirs = socket.socketpair()
    with pytest.raises(TimeoutError) as late, running(Exchange(time.monotonic() - 1, 10)):
        BoundedResponse(ours)
    ours.close()
    theirs.close()
    # Although the error, and so what it left behind, is kept.
    assert late.value.__traceback__ is not None
    assert ours.fileno() == -1


@pytest.mark.parametrize(("own", "owners", "expected"), [(5.0, 7.0, 5.0), (7.0, 5.0, 5.0)])
def test_an_exchange_ends_with_its_owner(own: float, owners: float, expected: float) -> None:
    with made_for(Owner(owners)):
        assert Exchange(own, 100).deadline == expected
    assert Exchange(own, 100).deadline == own
