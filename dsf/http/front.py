"""Middleware of every service, which processes a request before its application.

It rejects ambiguous headers, limits the time for a body, and passes HEAD requests to the application as GET. It also
prevents tracebacks for clients that disconnect in the middle of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsf.http.listening import find_ambiguity

#: Maximum seconds for a request's body, enough for 4 MiB, the largest body that a service accepts, over 2 Mbit/s.
BODY_SECONDS: Final = 20.0


class RequestMiddleware:
    """The outermost middleware of a service. It is plain ASGI, so that it also applies to mounted applications."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process a connection of ASGI. Only HTTP requests are checked."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        ambiguity = find_ambiguity(Headers(scope=scope).keys())
        if ambiguity:
            # Close the connection, because a proxy and this server may disagree on where the next request begins.
            await PlainTextResponse(f"{ambiguity}\n", 400, {"Connection": "close"})(scope, receive, send)
            return
        request = _TimedRequest(receive, send)
        # Suppress the disconnection, because the client either has left or was too slow and gets the response below.
        with contextlib.suppress(ClientDisconnect):
            await self._app(_as_get(scope), request.receive, request.send)
        if request.is_late and not request.has_started_response:
            text = f"this request did not arrive within {BODY_SECONDS:g} s\n"
            await PlainTextResponse(text, 408, {"Connection": "close"})(scope, receive, send)


class _TimedRequest:
    """Receives one request's body until a deadline. After the deadline the application sees a disconnected client."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._deadline = asyncio.get_running_loop().time() + BODY_SECONDS
        self._has_received_body = False
        #: True if the body did not arrive before the deadline.
        self.is_late = False
        #: True if the application has started its response.
        self.has_started_response = False

    async def receive(self) -> Message:
        """Return the next message of ASGI, or `http.disconnect` after the deadline of the body."""
        if self._has_received_body:
            # After the body, the application waits for the end of the connection.
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            self.is_late = True
            return {"type": "http.disconnect"}
        self._has_received_body = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Send a message of ASGI. Discards the response to a late body, because the middleware sends its own."""
        if self.is_late and not self.has_started_response:
            return
        self.has_started_response = True
        await self._send(message)


def _as_get(scope: Scope) -> Scope:
    """Return the scope with GET in place of HEAD. The server sends no body in response to HEAD."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
