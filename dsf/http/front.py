"""Middleware of every service, before its application sees a request.

A header that must be there once, once; a body within a time; HEAD wherever GET is answered; and no traceback for a
client that leaves in the middle of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dsf.http.listening import repeated

#: Seconds for all of a request's body: 4 MiB, the most that a service takes, over 2 Mbit/s.
BODY_SECONDS: Final = 20.0


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
        # A client that has left reads no response; one that was too slow gets the one below.
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
        """See ASGI. The response of an application to a body that did not arrive is replaced."""
        if self.is_late and not self.is_answered:
            return
        self.is_answered = True
        await self._send(message)


def _as_get(scope: Scope) -> Scope:
    """Return the application answers HEAD as GET; the server sends no body."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
