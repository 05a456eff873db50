"""The listening socket of every HTTP server, which divides its connections among clients.

uvicorn waits without a limit for the rest of a header and for a client that does not read its response, and it accepts
any number of connections. This module limits a server to `MAX_CONNECTIONS`. A new connection replaces another one of
the client address with the most connections, so that a client that opens many connections displaces only its own. Among
these, the connection without progress for the longest time is closed.

`Listener` is a socket for uvicorn's `sockets`. `Progress` is an ASGI middleware that reports the progress of requests
to their connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from enum import IntEnum
from typing import Any, Final

from dsf.errors import SettingsError
from dsf.settings import ALL_ADDRESSES

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
#: Address and port of a client.
Address = tuple[str, int]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

#: Maximum connections of a server. A browser opens six.
MAX_CONNECTIONS: Final = 256
#: Maximum seconds for the header of a request, counted from the connection or from the first byte of the request.
HEAD_SECONDS: Final = 10.0
#: Maximum seconds for a client to read a response, enough for 20 MB of metrics over a slow link between two sites.
SEND_SECONDS: Final = 60.0
#: Maximum bytes of responses that all clients together have not read, a quarter of the chart's smallest memory limit.
MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024
#: Bytes of a response that uvicorn gets at a time, because uvicorn copies them for each client, while an application
#: may use one object for all its clients.
_CHUNK_BYTES: Final = 64 * 1024

#: Maximum bytes that are received at a time. The parser may take long for many small parts of a request, while other
#: clients wait.
_MAX_RECEIVED_BYTES: Final = 64 * 1024

#: Trusted headers that a request may contain only once, in lower case. If a proxy appends its own line to that of a
#: client, the proxy may check one line and the server use the other.
SINGLE_HEADERS: Final = frozenset(
    ("authorization", "content-encoding", "content-length", "content-type", "host", "origin", "transfer-encoding")
)


class State(IntEnum):
    """States of a connection, in the order in which connections are closed in favour of new ones."""

    IDLE = 0
    #: The client sends a header or a body, or reads a response.
    WAITING = 1
    #: The application processes the request.
    WORKING = 2


class Connection(socket.socket):
    """An accepted connection that records the time of its client's last progress.

    Single received bytes do not count as progress, so the time of a header or a body counts from its start.
    """

    def __init__(self, accepted_socket: socket.socket, address: Address, forget: Callable[[Connection], None]) -> None:
        super().__init__(fileno=accepted_socket.detach())
        self.address = address
        #: Client to which the connection is counted.
        self.client = _compute_client_key(address[0])
        self.state = State.WAITING
        #: Time of the last progress, on the clock of time.monotonic().
        self.last_progress_at = time.monotonic()
        #: Bytes of the response that uvicorn has not received yet.
        self.unsent_bytes = 0
        self._forget = forget
        self._head_timer: asyncio.TimerHandle | None = None
        self._start_head_timer()

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Receive bytes. The first bytes on an idle connection start the time limit of the next request's header."""
        data = super().recv(min(size, _MAX_RECEIVED_BYTES), flags)
        if data and self.state is State.IDLE:
            self.set_state(State.WAITING)
            self._start_head_timer()
        return data

    def send(self, data: Any, flags: int = 0, /) -> int:
        """Send bytes, and record that the client makes progress."""
        sent_bytes = super().send(data, flags)
        self.last_progress_at = time.monotonic()
        return sent_bytes

    def sendmsg(self, buffers: Iterable[Any], /, *arguments: Any) -> int:
        """Send several buffers like `send`. Newer versions of asyncio call it instead of `send`."""
        sent_bytes = super().sendmsg(buffers, *arguments)
        self.last_progress_at = time.monotonic()
        return sent_bytes

    def close(self) -> None:
        """Close the socket, and remove the connection from its listener."""
        self._cancel_head_timer()
        self._forget(self)
        super().close()

    def abort(self) -> None:
        """Shut down both directions, so that the server notices the end of the connection and closes the socket."""
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def set_state(self, state: State) -> None:
        """Set the state, which counts as progress and ends the time limit of the header."""
        self._cancel_head_timer()
        self.state, self.last_progress_at = state, time.monotonic()

    def _start_head_timer(self) -> None:
        # An event loop is running, because only its accept and recv call this method.
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_SECONDS, self.abort)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Listener(socket.socket):
    """A listening socket that limits and tracks its connections.

    The framework creates the socket, because uvicorn exits with its own message if the port is in use.
    """

    def __init__(self, host: str, port: int, *, variable: str = "DSF_LISTEN_PORT") -> None:
        """Bind and listen. `variable` is the setting of the port, which a SettingsError names if binding fails."""
        self._connections: dict[Address, Connection] = {}
        try:
            family, host = find_family(host)
            # Pass the protocol explicitly, because asyncio otherwise does not disable Nagle's algorithm, which delays
            # every response by 40 ms.
            super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            try:
                set_options(self)
                self.bind((host, port))
                self.listen(128)
            except OSError:
                self.close()
                raise
        except OSError as error:
            raise SettingsError(
                f"{variable}: cannot listen on {host}:{port} ({error.strerror}); choose another port, 0 takes a free "
                "one"
            ) from None

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Closes another one if there are more than `MAX_CONNECTIONS`."""
        accepted_socket, address = super().accept()
        connection = Connection(accepted_socket, address[:2], self._forget)
        self._connections[connection.address] = connection
        if len(self._connections) > MAX_CONNECTIONS:
            self._evict_connection(connection)
        return connection, address

    def find_connection(self, client: Address | None) -> Connection | None:
        """Return the connection of a client's address and port in an ASGI scope; None if it is unknown."""
        return self._connections.get(client) if client else None

    def limit_unsent_bytes(self) -> None:
        """Close the slowest readers until at most `MAX_UNSENT_BYTES` are unsent.

        Keeps the last reader, because a single response may exceed the limit.
        """
        readers = sorted(
            (connection for connection in self._connections.values() if connection.unsent_bytes),
            key=lambda connection: connection.last_progress_at,
        )
        total_bytes = sum(reader.unsent_bytes for reader in readers)
        for reader in readers[:-1]:
            if total_bytes <= MAX_UNSENT_BYTES:
                return
            total_bytes -= reader.unsent_bytes
            reader.unsent_bytes = 0
            reader.abort()

    def _evict_connection(self, newest_connection: Connection) -> None:
        """Close the slowest connection of a client with the most connections, except `newest_connection`."""
        older_connections = [
            connection for connection in self._connections.values() if connection is not newest_connection
        ]
        connection_counts = Counter(connection.client for connection in older_connections)
        largest_count = max(connection_counts.values())
        slowest = min(
            (connection for connection in older_connections if connection_counts[connection.client] == largest_count),
            key=lambda connection: (connection.state, connection.last_progress_at),
        )
        # Forget the connection before the server closes it, so that it no longer counts.
        self._forget(slowest)
        slowest.abort()

    def _forget(self, connection: Connection) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]


class Progress:
    """The outermost ASGI middleware. It records the progress of requests and sends large responses in chunks."""

    def __init__(self, app: App, listener: Listener) -> None:
        self._app = app
        self._listener = listener

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Process a connection of ASGI. Only HTTP connections of the listener are tracked."""
        connection = self._listener.find_connection(scope.get("client")) if scope["type"] == "http" else None
        if connection is None:
            await self._app(scope, receive, send)
            return
        request = _TrackedRequest(connection, self._listener, receive, send)
        try:
            await self._app(scope, request.receive, request.send)
        finally:
            connection.unsent_bytes = 0
            connection.set_state(State.IDLE)


class _TrackedRequest:
    """Reports the progress of one request to its connection. `receive` and `send` are those of ASGI."""

    def __init__(self, connection: Connection, listener: Listener, receive: Receive, send: Send) -> None:
        self._connection = connection
        self._listener = listener
        self._receive = receive
        self._send = send
        self._has_received_body = False
        self._has_started_response = False
        connection.set_state(State.WORKING)

    async def receive(self) -> Message:
        if self._has_received_body:
            # After the body, the application waits for the end of the connection.
            return await self._receive()
        body_started_at = self._connection.last_progress_at
        self._connection.set_state(State.WAITING)
        # Restore the time, because all parts of a body count from its start.
        self._connection.last_progress_at = body_started_at
        message = await self._receive()
        self._has_received_body = not message.get("more_body", False)
        if self._has_received_body:
            self._connection.set_state(State.WORKING)
        return message

    async def send(self, message: Message) -> None:
        if not self._has_started_response:
            self._has_started_response = True
            self._connection.set_state(State.WAITING)
        body, start = message.get("body", b""), 0
        try:
            async with asyncio.timeout(SEND_SECONDS):
                while len(body) - start > _CHUNK_BYTES:
                    self._connection.unsent_bytes = len(body) - start
                    self._listener.limit_unsent_bytes()
                    await self._send({**message, "body": body[start : start + _CHUNK_BYTES], "more_body": True})
                    start += _CHUNK_BYTES
                await self._send({**message, "body": body[start:]} if start else message)
        except TimeoutError:
            # uvicorn discards all further messages after the connection has ended.
            self._connection.abort()
        self._connection.unsent_bytes = 0


def find_ambiguity(names: Iterable[str]) -> str:
    """Return why the headers of a request are ambiguous, as a text for the client; empty if they are not.

    Headers are ambiguous if one of `SINGLE_HEADERS` occurs twice, or if two headers determine the end of the body.
    """
    header_names: set[str] = set()
    for name in map(str.lower, names):
        if name in SINGLE_HEADERS and name in header_names:
            return f"the request has the header {name} twice"
        header_names.add(name)
    if header_names >= {"content-length", "transfer-encoding"}:
        return "the request has both headers content-length and transfer-encoding"
    return ""


def find_family(host: str) -> tuple[socket.AddressFamily, str]:
    """Return the address family and the host to bind for a host to listen on. Raises OSError for an unknown name."""
    if host == ALL_ADDRESSES and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"  # noqa: S104
    addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return addresses[0][0], host


def set_options(listener: socket.socket) -> None:
    """Allow an unbound socket to reuse its port immediately and, for IPv6, to accept IPv4 as well."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)


def _compute_client_key(host: str) -> bytes:
    """Return the key by which connections of a client are counted.

    The key is an IPv4 address or the /64 network of an IPv6 address, because a client can use all addresses of a /64.
    """
    try:
        address = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except OSError:
        return host.encode()
    return address if address.startswith(bytes(10) + b"\xff\xff") else address[:8]
