"""How every HTTP service of the framework listens, serves and ends.

`Front` is what it does with a request before its application sees it. A header that must be there once, once; a body
within a time; HEAD wherever GET is answered; and no traceback for a client that leaves in the middle of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from types import FrameType
from typing import Any, Final

import uvicorn
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dsf.errors import SettingsError
from dsf.process.connections import HEAD_SECONDS, family_of, prepare, repeated

_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]

#: Seconds for a client to read an answer: 20 MB of metrics over a slow link between two sites.
SEND_SECONDS: Final = 60.0
#: Connections of a server. A browser opens six; one that is idle closes after five seconds, or earlier for a new one.
MOST_CONNECTIONS: Final = 256
#: Bytes of answers that all clients together have not read: a part of the smallest memory limit of the chart (256 MB).
MOST_UNSENT: Final = 64 * 1024 * 1024
#: Bytes of an answer that the connection gets at a time: it copies them, and an application may have one object for all
#: its clients.
_PIECE: Final = 64 * 1024


class PatientProtocol(H11Protocol):
    """For `http=` of uvicorn's configuration, or `--http dsf.scorer.protocol:PatientProtocol`."""

    #: The loop's time at which this connection, or the header of its newest request, began.
    _since: float = 0.0
    _head: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None
    #: Bytes of the answer that the connection was not given yet.
    _rest: int = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.app = self._in_pieces(self.app)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Also starts the timeout of the first header; if there are too many, closes an idle or the oldest one."""
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > MOST_CONNECTIONS:
            others = [connection for connection in self._all() if connection is not self]
            # What is not idle for longest waits for its client, who reads slowly or does not send the body.
            next((connection for connection in others if connection.is_idle), others[0]).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Also starts the timeout at a new header, and cancels it when complete."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._drop_head()
        elif self._head is None and self.is_idle:
            self._await_head()

    def pause_writing(self) -> None:
        """Also starts the timeout of the answer, and closes the oldest such connections if too much is unsent."""
        super().pause_writing()
        if self._sending is None:
            self._sending = self.loop.call_later(SEND_SECONDS, self.transport.abort)
        slow = [connection for connection in self._all() if connection.unsent]
        total = sum(connection.unsent for connection in slow)
        # Never the only one: a single answer may be larger than the maximum.
        while total > MOST_UNSENT and len(slow) > 1:
            oldest = slow.pop(0)
            total -= oldest.unsent
            oldest.transport.abort()

    def resume_writing(self) -> None:
        """Also cancels the timeout of the answer, if that is all of it."""
        super().resume_writing()
        if not self._rest:
            self._drop_sending()

    def connection_lost(self, exc: Exception | None) -> None:
        """Also cancels the timeouts."""
        self._drop_head()
        self._drop_sending()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being received or answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def unsent(self) -> int:
        """Bytes of an answer that the client has not read, if it reads slowly."""
        return 0 if self._sending is None else self.transport.get_write_buffer_size() + self._rest

    def _in_pieces(self, app: Any) -> Any:
        """The application, whose large answers are sent as fast as the client reads them."""

        async def answer(scope: Any, receive: Any, send: _Send) -> None:
            async def send_pieces(message: _Message) -> None:
                body, start = message.get("body", b""), 0
                while len(body) - start > _PIECE:
                    self._rest = len(body) - start
                    await send({**message, "body": body[start : start + _PIECE], "more_body": True})
                    start += _PIECE
                await send({**message, "body": body[start:]} if start else message)
                self._rest = 0
                if not self.flow.write_paused:
                    self._drop_sending()

            await app(scope, receive, send_pieces)

        return answer

    def _all(self) -> list[PatientProtocol]:
        """The connections of this server, oldest first."""
        return sorted(
            (connection for connection in self.connections if isinstance(connection, PatientProtocol)),
            key=lambda connection: connection._since,
        )

    def _await_head(self) -> None:
        self._since = self.loop.time()
        self._head = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _drop_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _drop_sending(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None


#: Seconds for all of a request's body: 4 MiB, the most that a service takes, over 2 Mbit/s.
BODY_SECONDS: Final = 20.0


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises SettingsError naming the variable that sets the port.

    Not by uvicorn, which exits with its own message when the port is in use.
    """
    try:
        family, host = family_of(host)
        # With an explicit protocol: only then does asyncio disable Nagle's delay, 40 ms of every answer.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            prepare(listener)
            listener.bind((host, port))
            listener.listen(128)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise SettingsError(
            f"DSF_LISTEN_PORT: cannot listen on {host}:{port} ({error.strerror}); choose another port, 0 takes a free "
            "one"
        ) from None
    return listener


def configured(app: ASGIApp, *, shutdown_seconds: int) -> uvicorn.Config:
    """How to serve an application: within the limits of `PatientProtocol` and `Front`, without a log of its own."""
    return uvicorn.Config(
        Front(app),
        # Keep the framework's logging; a line for each scrape and probe would be noise.
        log_config=None,
        access_log=False,
        http=PatientProtocol,
        # The page itself decides whose forwarded headers count; nothing else reads any.
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=shutdown_seconds,
    )


def serve(server: uvicorn.Server, listener: socket.socket, announce: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT. `announce` says that the service listens: from then on signals are obeyed.

    The server has its own handlers while it runs. These handle a signal before that, and the one that it raises again
    at its end, which would otherwise kill the process before its caller could clean up.
    """

    def end(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    announce()
    server.run(sockets=[listener])


class Front:
    """The outermost middleware. Plain ASGI, so that it covers mounted applications as well."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        twice = repeated(Headers(scope=scope).keys())
        if twice:
            await PlainTextResponse(f"the request has the header {twice} twice\n", 400)(scope, receive, send)
            return
        request = _RequestBody(receive, send)
        # A client that has left reads no answer; one that was too slow gets the one below.
        with contextlib.suppress(ClientDisconnect):
            await self._app(_as_get(scope), request.receive, request.send)
        if request.is_late and not request.is_answered:
            text = f"this request did not arrive within {BODY_SECONDS:g} s\n"
            await PlainTextResponse(text, 408, {"Connection": "close"})(scope, receive, send)


class _RequestBody:
    """Receives one request's body until a deadline; after it the application sees that the client has left."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._deadline = asyncio.get_running_loop().time() + BODY_SECONDS
        self._is_whole = False
        self.is_late = False
        self.is_answered = False

    async def receive(self) -> Message:
        """See ASGI."""
        if self._is_whole:
            # Waits for the end of the connection.
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            self.is_late = True
            return {"type": "http.disconnect"}
        self._is_whole = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """See ASGI. What an application answers to a body that did not arrive is replaced."""
        if self.is_late and not self.is_answered:
            return
        self.is_answered = True
        await self._send(message)


def _as_get(scope: Scope) -> Scope:
    """The application answers HEAD as GET; the server sends no body."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
