"""Limits of the threaded servers: parallel connections, and seconds for a request's header.

A sender costs a thread from its first byte on, before anything is known of it. So a head has a deadline as a whole and
not for each read, and when all places are taken, the one that has waited longest for its head gives way.
"""

from __future__ import annotations

import io
import selectors
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final

import dsf.log
from dsf.listening import Listening

log = dsf.log.get(__name__)

#: Seconds for the head of a request, from its first byte on.
HEAD_SECONDS: Final = 10.0


class TimedReader(io.RawIOBase):
    """What a socket receives until a moment, however small the pieces are in which it comes."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._deadline = time.monotonic() + seconds

    def allow(self, seconds: float) -> None:
        """All that is read from now on has so many seconds."""
        self._deadline = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Raises TimeoutError."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class TimedHandler(BaseHTTPRequestHandler):
    """Reads heads in time. `timed` may be told of other times for bodies; writes have those of the last read."""

    #: Seconds that a connection may be silent between two requests.
    silence: float = HEAD_SECONDS
    timed: TimedReader

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.timed = TimedReader(self.connection, HEAD_SECONDS)
        self.rfile = io.BufferedReader(self.timed)

    def parse_request(self) -> bool:
        """The head has come when this is called for the standard library's handlers: it reads the headers."""
        is_whole = super().parse_request()
        self.connection.settimeout(self.timeout)
        return is_whole

    def await_request(self) -> bool:
        """Wait for the first byte of a request, which then has its time; whether there is one."""
        self.timed.allow(self.silence)
        try:
            found = bool(self.rfile.peek(1))  # type: ignore[attr-defined]
        except OSError:
            return False
        self.timed.allow(HEAD_SECONDS)
        return found

    def log_message(self, *_: object) -> None:
        """Quiet: what is refused is counted, and probes and scrapes are no events."""


class InThread:
    """Runs a server in a thread. Its port was taken when it was made."""

    def __init__(self, server: TCPServer, name: str) -> None:
        self._server = server
        # `serve_forever` would look again and again whether it shall stop.
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Answer requests."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and give the port back."""
        if self._thread.is_alive():
            self._wake.send(b"!")
            self._thread.join(5)
        self._server.server_close()
        self._wake.close()
        self._woken.close()

    def _serve(self) -> None:
        # Not to wait for a client that has gone between the two looks.
        self._server.timeout = 0
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while self._woken not in {key.fileobj for key, _ in selector.select()}:
                self._server.handle_request()


class BoundedServer(ThreadingMixIn, Listening):
    """One thread for each connection, and so many of them."""

    daemon_threads = True
    #: Connections that wait to be accepted. With more than that (5 by default) the kernel drops what a client sends to
    #: connect, which then tries again after 1, 3, 7 s.
    request_queue_size = 128
    #: Connections at once.
    places: int = 64

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self._lock = threading.Lock()
        self._taken = 0
        #: Connections of which nothing is known, in the order of their coming.
        self._strangers: dict[socket.socket, None] = {}
        super().__init__(address, handler)

    def is_known(self, connection: socket.socket) -> None:
        """This connection sent a request that is worth its place: it does not give way."""
        with self._lock:
            self._strangers.pop(connection, None)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if self._taken >= self.places:
                stranger = next(iter(self._strangers), None)
                if stranger is None:
                    self.shutdown_request(request)
                    return
                del self._strangers[stranger]
                self._cut(stranger)
            self._taken += 1
            self._strangers[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._taken -= 1
                self._strangers.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A sender that is slow or went away is no event; anything else is a mistake of ours."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.error("request failed", server=type(self).__name__, error=repr(error))

    @staticmethod
    def _cut(connection: socket.socket) -> None:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            # Gone already.
            return
