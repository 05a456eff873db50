"""Ends exchanges at their deadline.

A socket timeout is per read: a server that sends one byte now and then never hits it. So one thread of the process
shuts down the sockets of exchanges whose deadline has passed, which wakes the thread that reads or writes there.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final, Protocol

#: Seconds of one wait: an operating system cannot wait for any time that a deadline may be.
_LONGEST_WAIT: Final = 3600.0

_thread = threading.local()


class Timed(Protocol):
    """The owner of exchanges. Its deadline may become earlier."""

    deadline: float


@contextlib.contextmanager
def made_for(owner: Timed) -> Iterator[None]:
    """Exchanges begun in this thread belong to `owner`: its deadline bounds them, and `Watchdog.cut` ends them."""
    _thread.owner = owner
    try:
        yield
    finally:
        _thread.owner = None


class Exchange:
    """One request and its answer. `deadline` is on the clock of time.monotonic(), `max_bytes` are those of the body."""

    __slots__ = (
        *("_lock", "_over", "_socket", "deadline", "expired", "is_answered", "is_for_keys", "is_repeated"),
        *("is_reused", "max_bytes", "owner"),
    )

    def __init__(self, deadline: float, max_bytes: int, *, is_for_keys: bool = False) -> None:
        """`is_for_keys` allows a metadata address: the caller chooses it, not the author of a scorer."""
        self.is_for_keys = is_for_keys
        self.owner: Timed | None = getattr(_thread, "owner", None)
        self.deadline = deadline if self.owner is None else min(deadline, self.owner.deadline)
        self.max_bytes = max_bytes
        #: Whether the deadline passed before the exchange was over.
        self.expired = False
        #: Whether its connection served an earlier request, and whether the server has answered something.
        self.is_reused = False
        self.is_answered = False
        #: Whether the first try failed on a reused connection: the next one is on a new connection.
        self.is_repeated = False
        self._lock = threading.Lock()
        self._over = False
        self._socket: socket.socket | None = None

    def remaining(self) -> float:
        """Seconds left; always positive, because 0 would mean a non-blocking socket."""
        return max(self.deadline - time.monotonic(), 0.001)

    def check(self) -> None:
        """Raises TimeoutError when the deadline has passed. For work without socket I/O."""
        if time.monotonic() >= self.deadline:
            raise TimeoutError

    def attach(self, connection: socket.socket) -> None:
        """Set the socket of this exchange. Raises TimeoutError when the deadline has passed."""
        with self._lock:
            if self.expired:
                raise TimeoutError
            self._socket = connection

    def may_repeat(self) -> bool:
        """Whether a failure may be that of a connection which was kept too long. Only once."""
        return self.is_reused and not (self.is_answered or self.is_repeated or self.expired)

    @property
    def finished(self) -> bool:
        """Whether it is over."""
        return self._over

    def finish(self) -> None:
        """End the exchange: its socket may serve another one from now on."""
        with self._lock:
            self._over = True
            self._socket = None

    def expire(self) -> None:
        """Called at the deadline: wakes the thread that waits for the socket, with EOF or an error."""
        with self._lock:
            if self._over:
                return
            self.expired = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    # Not SSLSocket.shutdown: that removes the TLS object from the thread that reads.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class Watchdog:
    """One daemon thread that expires exchanges. It starts with the first exchange.

    It wakes once per longest deadline and not once per exchange: nearly all are over long before theirs.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._watched: list[Exchange] = []
        #: Time of the next check.
        self._next_look = math.inf
        self._thread: threading.Thread | None = None

    def watch(self, exchange: Exchange) -> None:
        """Expire this exchange at its deadline, unless it is finished by then."""
        with self._condition:
            self._watched.append(exchange)
            if exchange.deadline < self._next_look:
                self._next_look = exchange.deadline
                self._condition.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dsf-http-deadlines", daemon=True)
                self._thread.start()

    def cut(self, owner: Timed) -> None:
        """Apply an earlier deadline of `owner` to its running exchanges."""
        with self._condition:
            found = [exchange for exchange in self._watched if exchange.owner is owner]
            for exchange in found:
                exchange.deadline = min(exchange.deadline, owner.deadline)
            self._next_look = min([self._next_look, *(exchange.deadline for exchange in found)])
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                while (delay := self._next_look - time.monotonic()) > 0:
                    self._condition.wait(min(delay, _LONGEST_WAIT))
                now = time.monotonic()
                over = [exchange for exchange in self._watched if exchange.deadline <= now]
                self._watched = [
                    exchange for exchange in self._watched if exchange.deadline > now and not exchange.finished
                ]
                self._next_look = min((exchange.deadline for exchange in self._watched), default=math.inf)
            for exchange in over:
                exchange.expire()


watchdog = Watchdog()
