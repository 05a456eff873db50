"""How every HTTP service of the framework listens, serves and ends.

`Front` is what it does with a request before its application sees it. A header that must be there once, once; a body
within a time; HEAD wherever GET is answered; and no traceback for a client that leaves in the middle of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsf.errors import SettingsError
from dsf.http.protocol import PatientProtocol
from dsf.process.connections import repeated
from dsf.process.listening import family_of, prepare

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
