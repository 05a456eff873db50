"""The exchanges of this process, each of which ends at its deadline, whatever its server does.

The timeouts of requests are for each read: a server that sends a byte now and then never meets them. Therefore a thread
shuts down the connection of an exchange at its deadline: who reads from it or writes to it then gets EOF or an error.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final, Protocol

from dsf.http.access import USUAL_TLS, TlsOptions
from dsf.process.threads import SupervisedThread


class Owner(Protocol):
    """The owner of exchanges. Its deadline may become earlier."""

    deadline: float


class Exchange:
    """A request and its response. `deadline` is on the clock of time.monotonic(), `max_bytes` are those of the body."""

    def __init__(self, deadline: float, max_bytes: int, *, tls: TlsOptions = USUAL_TLS) -> None:
        self.owner: Owner | None = getattr(_thread, "owner", None)
        self.deadline = deadline if self.owner is None else min(deadline, self.owner.deadline)
        self.max_bytes = max_bytes
        self.tls = tls
        #: Allows a metadata address: the caller chooses it, not the author of a scorer.
        self.is_for_keys = False
        #: Whether no kept connection may be used, and then whether none was.
        self.is_new = False
        #: Whether it has a connection that was kept from an earlier one.
        self.is_kept = False
        #: Whether a byte of the response has come.
        self.is_answered = False
        #: Answers, with those that the library drops unread, such as a proxy's refusal of CONNECT: each holds its
        #: socket open.
        self.answers: list[http.client.HTTPResponse] = []
        self._socket: socket.socket | None = None

    def remaining(self) -> float:
        """Return seconds left. Raises TimeoutError when the deadline has passed."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        # An operating system cannot wait for any time that a deadline may be.
        return min(seconds, 86_400.0)

    @property
    def may_repeat(self) -> bool:
        """True if a failure may be that of a connection which was kept too long."""
        return self.is_kept and not self.is_answered

    def use(self, connection: socket.socket) -> None:
        """This is its socket from now on. Raises TimeoutError when the deadline has passed."""
        # In this order: a socket that comes too late to be shut down is not used.
        self._socket = connection
        connection.settimeout(self.remaining())

    def close(self) -> None:
        """End the exchange, and release its owner, because a kept connection references its last response."""
        self._socket = self.owner = None
        while self.answers:
            self.answers.pop().close()

    def end(self) -> None:
        """End it from another thread."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # The call is not SSLSocket.shutdown, which removes the TLS object from the thread that reads.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _Watch:
    """The thread that ends exchanges at their deadline, from the first one on."""

    def __init__(self) -> None:
        self._running: set[Exchange] = set()
        self._changed = threading.Condition()
        self._wakes_at = 0.0
        self._thread: SupervisedThread | None = None

    @contextlib.contextmanager
    def running(self, exchange: Exchange) -> Iterator[None]:
        """Requests of this thread belong to this exchange."""
        _thread.exchange = exchange
        with self._changed:
            self._running.add(exchange)
            if self._thread is None:
                self._thread = SupervisedThread(self._run, "dsf-http-watch")
                self._thread.start()
            elif exchange.deadline < self._wakes_at:
                self._changed.notify()
        try:
            yield
        finally:
            _thread.exchange = None
            with self._changed:
                self._running.discard(exchange)
            exchange.close()

    def cut(self, owner: Owner) -> None:
        """The deadline of the owner's exchanges is now."""
        with self._changed:
            for exchange in self._running:
                if exchange.owner is owner:
                    exchange.deadline = time.monotonic()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                for exchange in self._running:
                    if exchange.deadline <= now:
                        exchange.end()
                later = [exchange.deadline for exchange in self._running if exchange.deadline > now]
                self._wakes_at = min([now + 15.0, *later])
                self._changed.wait(self._wakes_at - now)


_thread = threading.local()
_watch: Final = _Watch()
cut: Final = _watch.cut
running: Final = _watch.running


def current() -> Exchange:
    """Return the exchange of this thread."""
    exchange: Exchange = _thread.exchange
    return exchange


@contextlib.contextmanager
def made_for(owner: Owner) -> Iterator[None]:
    """Exchanges begun in this thread belong to `owner`: its deadline bounds them, and `cut` ends them."""
    _thread.owner = owner
    try:
        yield
    finally:
        _thread.owner = None
