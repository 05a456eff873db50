"""Enforcement of deadlines on the exchanges of this process.

The timeouts of requests apply to each read, so a server that sends a byte now and then never exceeds them. Therefore a
thread shuts down the connection of an exchange at its deadline. Reads from the connection then return EOF, and writes
raise an error.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final, Protocol

from dsf.http.access import DEFAULT_TLS, TlsOptions
from dsf.process.threads import SupervisedThread

#: Maximum timeout of a socket operation, because operating systems reject the large timeouts of distant deadlines.
_MAX_WAIT_SECONDS: Final = 86_400.0
#: Maximum seconds for which the watching thread sleeps. The value is uncritical, because an exchange with an earlier
#: deadline wakes the thread.
_MAX_SLEEP_SECONDS: Final = 15.0


class ExchangeOwner(Protocol):
    """An owner of exchanges. No exchange lasts longer than the deadline of its owner.

    If the deadline becomes earlier, running exchanges end only when the owner calls `end_exchanges`.
    """

    #: Deadline on the clock of time.monotonic().
    deadline: float


class Exchange:
    """The limits and the state of one request with its response."""

    def __init__(self, deadline: float, max_bytes: int, *, tls: TlsOptions = DEFAULT_TLS) -> None:
        """`deadline` is on the clock of time.monotonic(), `max_bytes` limits the decompressed body of the response."""
        self.owner: ExchangeOwner | None = getattr(_thread_local, "owner", None)
        self.deadline = deadline if self.owner is None else min(deadline, self.owner.deadline)
        self.max_bytes = max_bytes
        self.tls = tls
        #: True to allow link-local and metadata addresses, because the URL is not chosen by the author of a scorer.
        self.allows_link_local = False
        #: True if the exchange must use a new connection. It remains True after the connection is open.
        self.needs_new_connection = False
        #: True if the exchange uses a connection that was kept after an earlier exchange.
        self.reuses_connection = False
        #: True if at least one byte of the response has arrived.
        self.has_response = False
        #: All responses, including those that the library drops unread, such as a proxy's response to CONNECT. Each
        #: response keeps its socket open until it is closed.
        self.responses: list[http.client.HTTPResponse] = []
        self._socket: socket.socket | None = None

    def require_remaining_seconds(self) -> float:
        """Return the remaining seconds, at most a day. Raises TimeoutError if the deadline has passed."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return min(seconds, _MAX_WAIT_SECONDS)

    @property
    def may_repeat(self) -> bool:
        """True if a failure may be caused by a kept connection that the peer had already closed."""
        return self.reuses_connection and not self.has_response

    def attach_socket(self, connection: socket.socket) -> None:
        """Bind the exchange to this socket until the deadline. Raises TimeoutError if the deadline has passed."""
        # Store the socket before the check of the deadline. If it is stored too late to be shut down, the check raises,
        # so the socket is not used.
        self._socket = connection
        connection.settimeout(self.require_remaining_seconds())

    def close(self) -> None:
        """Close all responses, and release the owner, because a kept connection references its last response."""
        self._socket = self.owner = None
        while self.responses:
            self.responses.pop().close()

    def shut_down(self) -> None:
        """Shut down the connection, so that the thread of the exchange gets EOF or an error."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Do not call SSLSocket.shutdown, because it removes the TLS object from the thread that reads.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _DeadlineWatch:
    """Ends exchanges at their deadline, in a thread that starts with the first exchange."""

    def __init__(self) -> None:
        self._running_exchanges: set[Exchange] = set()
        self._condition = threading.Condition()
        self._wakes_at = 0.0
        self._thread: SupervisedThread | None = None

    @contextlib.contextmanager
    def watch_exchange(self, exchange: Exchange) -> Iterator[None]:
        """Make `exchange` the current exchange of this thread, and end it at its deadline."""
        _thread_local.exchange = exchange
        with self._condition:
            self._running_exchanges.add(exchange)
            if self._thread is None:
                self._thread = SupervisedThread(self._run, "dsf-http-watch")
                self._thread.start()
            elif exchange.deadline < self._wakes_at:
                self._condition.notify()
        try:
            yield
        finally:
            _thread_local.exchange = None
            with self._condition:
                self._running_exchanges.discard(exchange)
            exchange.close()

    def end_exchanges(self, owner: ExchangeOwner) -> None:
        """Set the deadline of the owner's running exchanges to the current time, which ends them."""
        with self._condition:
            for exchange in self._running_exchanges:
                if exchange.owner is owner:
                    exchange.deadline = time.monotonic()
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                now = time.monotonic()
                for exchange in self._running_exchanges:
                    if exchange.deadline <= now:
                        exchange.shut_down()
                future_deadlines = [
                    exchange.deadline for exchange in self._running_exchanges if exchange.deadline > now
                ]
                self._wakes_at = min([now + _MAX_SLEEP_SECONDS, *future_deadlines])
                self._condition.wait(self._wakes_at - now)


#: Owner and current exchange of each thread.
_thread_local = threading.local()
_watch: Final = _DeadlineWatch()
end_exchanges: Final = _watch.end_exchanges
watch_exchange: Final = _watch.watch_exchange


def get_current_exchange() -> Exchange:
    """Return the current exchange of this thread."""
    exchange: Exchange = _thread_local.exchange
    return exchange


@contextlib.contextmanager
def assign_exchange_owner(owner: ExchangeOwner) -> Iterator[None]:
    """Assign `owner` to the exchanges that this thread creates in the context.

    The owner's deadline bounds them, and `end_exchanges` ends them.
    """
    _thread_local.owner = owner
    try:
        yield
    finally:
        _thread_local.owner = None
