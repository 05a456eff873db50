"""The threaded servers: listen addresses, of which `::` covers all of the machine, IPv4 and IPv6, and limits.

An unauthenticated client occupies a thread from its first byte. Therefore the whole request header has one deadline,
not each read, and when all places are taken, the connection that has waited longest for its header is closed.
"""

from __future__ import annotations

import io
import socket
import sys
import threading
import time
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final

import dsf.log
from dsf.process.threads import SupervisedThread, background

log = dsf.log.get(__name__)

#: Every address of both families; every IPv4 address on a machine without IPv6.
EVERYWHERE: Final = "::"

#: Seconds for which the end of a server is waited for.
END_SECONDS: Final = 5.0

#: Seconds for a request's header, from its first byte.
HEAD_SECONDS: Final = 10.0

#: Headers that a server trusts, in lower case. A proxy that adds its line behind that of a client checks one of them,
#: and the server may take the other.
ONCE: Final = frozenset(
    ("authorization", "content-encoding", "content-length", "content-type", "host", "origin", "transfer-encoding")
)


def repeated(names: Iterable[str]) -> str:
    """The first of `ONCE` that a request has twice; empty if there is none."""
    header_names: set[str] = set()
    for name in map(str.lower, names):
        if name in ONCE and name in header_names:
            return name
        header_names.add(name)
    return ""


class TimedReader(io.RawIOBase):
    """Reader of a socket with one deadline for all reads."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._deadline = time.monotonic() + seconds

    def allow(self, seconds: float) -> None:
        """Set the deadline for all further reads, in seconds from now."""
        self._deadline = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Raises TimeoutError."""
        remaining_seconds = self._deadline - time.monotonic()
        if remaining_seconds <= 0:
            raise TimeoutError
        self._connection.settimeout(remaining_seconds)
        return self._connection.recv_into(buffer)


class TimedHandler(BaseHTTPRequestHandler):
    """Reads headers with a deadline. `timed` may get other deadlines for bodies; writes have that of the last read."""

    #: Seconds for which a connection may be idle between requests.
    silence: float = HEAD_SECONDS
    timed: TimedReader

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.timed = TimedReader(self.connection, HEAD_SECONDS)
        self.rfile = io.BufferedReader(self.timed)

    def parse_request(self) -> bool:
        """Called by the standard library's handlers to read the headers, which it takes the first of."""
        is_whole = super().parse_request()
        self.connection.settimeout(self.timeout)
        if not is_whole:
            return False
        problem = ""
        if twice := repeated(self.headers.keys()):
            problem = f"the request has the header {twice} twice"
        elif "Transfer-Encoding" in self.headers and "Content-Length" in self.headers:
            problem = "the request has two lengths: Transfer-Encoding and Content-Length"
        if problem:
            self.close_connection = True
            self.send_error(HTTPStatus.BAD_REQUEST, problem)
        return not problem

    def await_request(self) -> bool:
        """Wait for the first byte of a request and start its deadline; returns whether there is one."""
        self.timed.allow(self.silence)
        try:
            has_request = bool(self.rfile.peek(1))  # type: ignore[attr-defined]
        except OSError:
            return False
        self.timed.allow(HEAD_SECONDS)
        return has_request

    def log_message(self, *_: object) -> None:
        """Log nothing: refusals are counted, and probes and scrapes are not worth logging."""


class InThread:
    """Runs a server in a thread. The constructor has bound its port."""

    def __init__(self, server: TCPServer, name: str) -> None:
        self._server = server
        self._thread = SupervisedThread(server.serve_forever, name)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Start to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and release the port."""
        if self._thread.is_alive():
            # The call waits for the thread without a limit.
            background(self._server.shutdown, f"end of {self._thread.name}")
            self._thread.join(END_SECONDS)
        self._server.server_close()


def family_of(host: str) -> tuple[socket.AddressFamily, str]:
    """The family of an address or name to listen on, and what to bind. Raises OSError for an unknown name."""
    if host == EVERYWHERE and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"  # noqa: S104
    addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return addresses[0][0], host


def prepare(listener: socket.socket) -> None:
    """Allow an unbound socket to reuse its port immediately and, for IPv6, to accept IPv4 as well."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)


class BoundedServer(ThreadingMixIn, TCPServer):
    """A server with one thread per connection, and a limited number of connections; it can listen on any address."""

    daemon_threads = True
    #: Backlog of connections to accept. Beyond it (5 by default) the kernel drops a client's SYN, and the client
    #: retries after 1, 3, 7 s.
    request_queue_size = 128
    #: Most concurrent connections.
    places: int = 64

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self._lock = threading.Lock()
        self._taken = 0
        #: Connections without a valid request so far, in order of arrival.
        self._strangers: dict[socket.socket, None] = {}
        host, port = address
        self.address_family, host = family_of(host)
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        """Bind for both families."""
        prepare(self.socket)
        super().server_bind()

    def is_known(self, connection: socket.socket) -> None:
        """Mark a connection as having sent a valid request: it is not closed for others."""
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
        """Ignore slow and disconnected clients; any other error is a bug."""
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
