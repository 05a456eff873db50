"""The exchange that a thread is in: its deadline, its limits, and its socket.

The timeouts of requests are per read: a server that sends one byte now and then never meets them. So each operation on
the socket gets the time that is left (dsf.http.transport, dsf.http.answer).
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final, Protocol

from dsf.http.access import Tls

#: Seconds of one wait: an operating system cannot wait for any time that a deadline may be.
_LONGEST_WAIT: Final = 86_400.0

_thread = threading.local()
_lock = threading.Lock()


class Timed(Protocol):
    """The owner of exchanges. Its deadline may become earlier."""

    deadline: float


class Kept(Protocol):
    """A connection that may serve other exchanges later."""

    def rest(self) -> None:
        """Its exchange is over."""


class Exchange:
    """One request and its answer. `deadline` is on the clock of time.monotonic(), `max_bytes` are those of the body."""

    def __init__(
        self,
        deadline: float,
        max_bytes: int,
        *,
        tls: Tls | None = None,
        is_for_keys: bool = False,
        is_on_new: bool = False,
    ) -> None:
        """`is_for_keys` allows a metadata address: the caller chooses it, not the author of a scorer."""
        self.is_for_keys = is_for_keys
        self.owner: Timed | None = getattr(_thread, "owner", None)
        self.deadline = deadline if self.owner is None else min(deadline, self.owner.deadline)
        self.max_bytes = max_bytes
        self.tls = tls
        #: Whether no kept connection may be used.
        self.is_on_new = is_on_new
        #: Whether its connection served an earlier request, and whether the server has answered something.
        self.is_reused = False
        self.is_answered = False
        self.connection: Kept | None = None
        self._socket: socket.socket | None = None

    def remaining(self) -> float:
        """Seconds left. Raises TimeoutError when the deadline has passed."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return min(seconds, _LONGEST_WAIT)

    def may_repeat(self) -> bool:
        """Whether a failure may be that of a connection which was kept too long. Only once."""
        return self.is_reused and not self.is_answered and not self.is_on_new

    def attach(self, connection: socket.socket) -> None:
        """Set the socket of this exchange. Raises TimeoutError when the deadline has passed."""
        with _lock:
            self.remaining()
            self._socket = connection

    def detach(self) -> None:
        """The exchange is over: its connection may serve another one."""
        with _lock:
            self._socket = None
        if self.connection is not None:
            self.connection.rest()

    def end(self) -> None:
        """End it now, from another thread: wakes the one that waits for the socket, with EOF or an error."""
        with _lock:
            self.deadline = time.monotonic()
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    # Not SSLSocket.shutdown: that removes the TLS object from the thread that reads.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


#: Running exchanges that have an owner.
_owned: set[Exchange] = set()


def current() -> Exchange:
    """The exchange of this thread."""
    exchange: Exchange = _thread.exchange
    return exchange


@contextlib.contextmanager
def running(exchange: Exchange) -> Iterator[None]:
    """Requests of this thread belong to this exchange."""
    _thread.exchange = exchange
    if exchange.owner is not None:
        _owned.add(exchange)
    try:
        yield
    finally:
        exchange.detach()
        _owned.discard(exchange)
        _thread.exchange = None


@contextlib.contextmanager
def made_for(owner: Timed) -> Iterator[None]:
    """Exchanges begun in this thread belong to `owner`: its deadline bounds them, and `cut` ends them."""
    _thread.owner = owner
    try:
        yield
    finally:
        _thread.owner = None


def cut(owner: Timed) -> None:
    """End the running exchanges of `owner`, whose deadline is now."""
    for exchange in list(_owned):
        if exchange.owner is owner:
            exchange.end()
