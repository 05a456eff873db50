"""Before any endpoint: who calls, and whether a web page made their browser call.

Plain ASGI, so that it holds for everything below it, mounted applications and streams included.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import dsf.log
from dsf.errors import AccessError, BackendError, SettingsError
from dsf.http import apidocs
from dsf.optimizer.access import Access, current_caller, is_loopback
from dsf.optimizer.views import ProblemView

log = dsf.log.get(__name__)

#: Paths that everybody may ask for: probes, and what the API looks like.
PUBLIC: Final = ("/healthz", "/readyz", "/openapi.json", apidocs.PATH, *apidocs.ASSETS)
PROBLEM: Final = "application/problem+json"
#: Bytes of a request's body. That of a plan for 10,000 clusters with three policies each has two million; what is made
#: of a body takes some ten times as much memory.
MAX_BODY: Final = 4 * 1024 * 1024


class BodyLimit:
    """Answers 413 to a body of more than `MAX_BODY` bytes, whether its length was said or not."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        if length.isascii() and length.isdigit() and int(length) > MAX_BODY:
            await _too_large()(scope, receive, send)
            return
        received = 0
        started = False

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            # To whoever reads on, the client has gone.
            return message if received <= MAX_BODY else {"type": "http.disconnect"}

        async def answer(message: Message) -> None:
            nonlocal started
            if received <= MAX_BODY or started:
                started = True
                await send(message)

        try:
            await self._app(scope, limited, answer)
        except ClientDisconnect:
            if received <= MAX_BODY:
                raise
        if received > MAX_BODY and not started:
            await _too_large()(scope, receive, send)


class AccessMiddleware:
    """Sets `current_caller`, or answers 401."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http" or scope["path"] in PUBLIC:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not self._access.needs_token and (reason := _foreign(headers)):
            await problem(403, reason)(scope, receive, send)
            return
        try:
            caller = await run_in_threadpool(self._access.authenticate, _token(headers))
        except AccessError as error:
            await problem(error.status, str(error), headers={"WWW-Authenticate": "Bearer"})(scope, receive, send)
            return
        except (BackendError, SettingsError) as error:
            log.warning("caller cannot be known", error=str(error))
            await problem(503, str(error))(scope, receive, send)
            return
        reset = current_caller.set(caller)
        try:
            await self._app(scope, receive, send)
        finally:
            current_caller.reset(reset)


def _token(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _foreign(headers: Headers) -> str:
    """Why a request without a token may come from somebody else's web page; empty when it does not.

    A browser sends such a page's requests to this machine as well. It says whose page it is, and by what name it found
    the server: a name of theirs that points to this machine is no name of ours.
    """
    if not is_loopback(_host(headers.get("host", ""))):
        return f"this service answers to localhost only, not to {headers.get('host', '')!r}"
    origin = headers.get("origin")
    if origin is not None and not is_loopback(_host(origin.partition("://")[2])):
        return f"requests of the web page {origin!r} are refused"
    return ""


def _host(value: str) -> str:
    try:
        return urlsplit(f"//{value}").hostname or ""
    except ValueError:
        return ""


def problem(status: int, detail: str, title: str = "", headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error as RFC 9457 has it; without `title` that of the status."""
    body = ProblemView(title=title or HTTPStatus(status).phrase, status=status, detail=detail).model_dump()
    return JSONResponse(body, status_code=status, media_type=PROBLEM, headers=headers)


def _too_large() -> JSONResponse:
    return problem(413, f"the body has more than {MAX_BODY} bytes, the most that is taken", "Content Too Large")
