"""The listening socket of every HTTP server, whose connections are shared out among the clients.

uvicorn waits without a limit for the rest of a header and for a client that does not read its response, and accepts
any number of connections. Here a server has at most `MOST_CONNECTIONS`. A new one takes the place of the connection
that has made no progress for longest, of the client address that has the most of them: however many connections a
client opens, it takes places from itself. `Listener` is a socket for uvicorn's `sockets`, and `Progress` the ASGI
middleware that tells its connections what becomes of their requests.
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
from dsf.settings import EVERYWHERE

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
#: Address and port of a client.
Address = tuple[str, int]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

#: Connections of a server. A browser opens six.
MOST_CONNECTIONS: Final = 256
#: Seconds for the header of a request, from the connection or its first byte on.
HEAD_SECONDS: Final = 10.0
#: Seconds for a client to read a response: 20 MB of metrics over a slow link between two sites.
SEND_SECONDS: Final = 60.0
#: Bytes of responses that all clients together have not read: a part of the chart's smallest memory limit (256 MB).
MOST_UNSENT: Final = 64 * 1024 * 1024
#: Bytes of a response that the connection gets at a time: it copies them, and an application may have one object for
#: all its clients.
_PIECE: Final = 64 * 1024

#: Headers that a server trusts, in lower case. A proxy that adds its line behind that of a client checks one of them,
#: and the server may take the other.
ONCE: Final = frozenset(
    ("authorization", "content-encoding", "content-length", "content-type", "host", "origin", "transfer-encoding")
)


class State(IntEnum):
    """States of a connection; it is closed for a new one in this order."""

    IDLE = 0
    #: Its client sends a header, a body, or reads a response.
    WAITING = 1
    #: The application works for it.
    WORKING = 2


class Connection(socket.socket):
    """An accepted connection, with the time since which its client has made no progress.

    Bytes alone are no progress: a header and a body count from their start.
    """

    def __init__(self, accepted: socket.socket, address: Address, forget: Callable[[Connection], None]) -> None:
        super().__init__(fileno=accepted.detach())
        self.address = address
        #: Client whose share of the places it has.
        self.client = _share_of(address[0])
        self.state = State.WAITING
        self.since = time.monotonic()
        #: Bytes of the response that uvicorn has not been given.
        self.unsent = 0
        self._forget = forget
        self._head: asyncio.TimerHandle | None = None
        self._await_head()

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """See the base class; notes that a new request begins."""
        data = super().recv(size, flags)
        if data and self.state is State.IDLE:
            self.note(State.WAITING)
            self._await_head()
        return data

    def send(self, data: Any, flags: int = 0, /) -> int:
        """See the base class; notes that the client reads."""
        sent_bytes = super().send(data, flags)
        self.since = time.monotonic()
        return sent_bytes

    def sendmsg(self, buffers: Iterable[Any], /, *arguments: Any) -> int:
        """As `send`, for several buffers: newer versions of asyncio call it."""
        sent_bytes = super().sendmsg(buffers, *arguments)
        self.since = time.monotonic()
        return sent_bytes

    def close(self) -> None:
        """See the base class; gives the connection's place away."""
        self._drop_head()
        self._forget(self)
        super().close()

    def abort(self) -> None:
        """Close it for both sides; the server then notices the end of the connection."""
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def note(self, state: State) -> None:
        """Note that the connection does this from now on."""
        self._drop_head()
        self.state, self.since = state, time.monotonic()

    def _await_head(self) -> None:
        # In the event loop: it is called by the loop's accept and recv.
        self._head = asyncio.get_running_loop().call_later(HEAD_SECONDS, self.abort)

    def _drop_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


class Listener(socket.socket):
    """A listening socket that knows its connections. Raises SettingsError naming the variable that sets the port.

    The socket is made here and not by uvicorn, which exits with its own message when the port is in use.
    """

    def __init__(self, host: str, port: int, *, variable: str = "DSF_LISTEN_PORT") -> None:
        self._connections: dict[Address, Connection] = {}
        try:
            family, host = family_of(host)
            # With an explicit protocol: only then does asyncio disable Nagle's delay, 40 ms of every response.
            super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            try:
                prepare(self)
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
        """Accept a connection; if there are too many, close another one for it."""
        accepted, address = super().accept()
        connection = Connection(accepted, address[:2], self._forget)
        self._connections[connection.address] = connection
        if len(self._connections) > MOST_CONNECTIONS:
            self._close_one(connection)
        return connection, address

    def connection(self, client: Address | None) -> Connection | None:
        """Return the connection of a client's address and port, as ASGI gives them."""
        return self._connections.get(client) if client else None

    def bound_unsent(self) -> None:
        """Close the slowest readers while more is unsent than the maximum. Never the only one: a single response may
        be larger."""
        readers = sorted(
            (one for one in self._connections.values() if one.unsent), key=lambda connection: connection.since
        )
        total = sum(reader.unsent for reader in readers)
        for reader in readers[:-1]:
            if total <= MOST_UNSENT:
                return
            total -= reader.unsent
            reader.unsent = 0
            reader.abort()

    def _close_one(self, newest: Connection) -> None:
        older_connections = [connection for connection in self._connections.values() if connection is not newest]
        shares = Counter(connection.client for connection in older_connections)
        largest = max(shares.values())
        slowest = min(
            (connection for connection in older_connections if shares[connection.client] == largest),
            key=lambda connection: (connection.state, connection.since),
        )
        # Its place is free at once, whenever the server notices.
        self._forget(slowest)
        slowest.abort()

    def _forget(self, connection: Connection) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]


class Progress:
    """Outermost ASGI middleware: notes the progress of requests, and sends large responses as fast as they are read."""

    def __init__(self, app: App, listener: Listener) -> None:
        self._app = app
        self._listener = listener

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """See ASGI."""
        connection = self._listener.connection(scope.get("client")) if scope["type"] == "http" else None
        if connection is None:
            await self._app(scope, receive, send)
            return
        request = _Request(connection, self._listener, receive, send)
        try:
            await self._app(scope, request.receive, request.send)
        finally:
            connection.unsent = 0
            connection.note(State.IDLE)


class _Request:
    def __init__(self, connection: Connection, listener: Listener, receive: Receive, send: Send) -> None:
        self._connection = connection
        self._listener = listener
        self._receive = receive
        self._send = send
        self._has_body = False
        self._has_begun = False
        connection.note(State.WORKING)

    async def receive(self) -> Message:
        if self._has_body:
            # Waits for the end of the connection.
            return await self._receive()
        began = self._connection.since
        self._connection.note(State.WAITING)
        # All parts of a body count from its start.
        self._connection.since = began
        message = await self._receive()
        self._has_body = not message.get("more_body", False)
        if self._has_body:
            self._connection.note(State.WORKING)
        return message

    async def send(self, message: Message) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._connection.note(State.WAITING)
        body, start = message.get("body", b""), 0
        try:
            async with asyncio.timeout(SEND_SECONDS):
                while len(body) - start > _PIECE:
                    self._connection.unsent = len(body) - start
                    self._listener.bound_unsent()
                    await self._send({**message, "body": body[start : start + _PIECE], "more_body": True})
                    start += _PIECE
                await self._send({**message, "body": body[start:]} if start else message)
        except TimeoutError:
            # Whatever the application sends from now on is lost.
            self._connection.abort()
        self._connection.unsent = 0


def repeated(names: Iterable[str]) -> str:
    """Return the first of `ONCE` that a request has twice; empty if there is none."""
    header_names: set[str] = set()
    for name in map(str.lower, names):
        if name in ONCE and name in header_names:
            return name
        header_names.add(name)
    return ""


def family_of(host: str) -> tuple[socket.AddressFamily, str]:
    """Return the family of an address or name to listen on, and what to bind. Raises OSError for an unknown name."""
    if host == EVERYWHERE and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"  # noqa: S104
    addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return addresses[0][0], host


def prepare(listener: socket.socket) -> None:
    """Allow an unbound socket to reuse its port immediately and, for IPv6, to accept IPv4 as well."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)


def _share_of(host: str) -> bytes:
    """Return what shares its connections: an IPv4 address, or the network of an IPv6 one, as a client has all of a
    /64."""
    try:
        address = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except OSError:
        return host.encode()
    return address if address.startswith(bytes(10) + b"\xff\xff") else address[:8]
