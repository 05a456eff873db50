"""Middleware: authentication, protection against cross-site requests, and checks of the body.

The classes are plain ASGI middleware, so that they also cover mounted applications and streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import dsf.log
from dsf.boundedjson import serialize_parsing
from dsf.errors import AccessError, BackendError, JsonBoundsError, ManifestError, SettingsError
from dsf.http import apidocs
from dsf.http.hosts import is_loopback, parse_host_name
from dsf.optimizer.access import CallerAccess, current_caller
from dsf.optimizer.requestbody import MAX_BODY, load_json
from dsf.optimizer.views import ProblemView

log = dsf.log.get(__name__)

#: Paths without authentication: probes and the API's description.
PUBLIC: Final = ("/healthz", "/readyz", "/openapi.json", apidocs.PATH, *apidocs.ASSETS)
PROBLEM: Final = "application/problem+json"


class BodyCheck:
    """Checks the body of a request.

    Responds with 413 to more than `MAX_BODY` bytes, with or without Content-Length, with 400 to too many values, and
    with 422 to duplicate keys. Runs after `AccessMiddleware`, so that only bodies of authenticated callers are parsed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        if length.isascii() and length.isdigit() and int(length) > MAX_BODY:
            await _make_too_large_response()(scope, receive, send)
            return
        body = bytearray()
        refusal: JSONResponse | None = None
        has_started = False

        async def receive_limited() -> Message:
            nonlocal refusal
            message = await receive()
            body.extend(message.get("body", b""))
            if len(body) > MAX_BODY:
                refusal = _make_too_large_response()
            elif message["type"] == "http.request" and not message.get("more_body", False):
                refusal = await run_in_threadpool(_find_body_problem, bytes(body))
            # Make a refused request look to the application like a client that disconnected.
            return message if refusal is None else {"type": "http.disconnect"}

        async def send_response(message: Message) -> None:
            nonlocal has_started
            if refusal is None or has_started:
                has_started = True
                await send(message)

        try:
            await self._app(scope, receive_limited, send_response)
        except ClientDisconnect:
            if refusal is None:
                raise
        if refusal is not None and not has_started:
            await refusal(scope, receive, send)


class AccessMiddleware:
    """Sets `current_caller`, or responds with 401."""

    def __init__(self, app: ASGIApp, access: CallerAccess) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http" or scope["path"] in PUBLIC:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not self._access.needs_token and (reason := _find_foreign_origin(headers)):
            await make_problem(403, reason)(scope, receive, send)
            return
        try:
            client = (scope.get("client") or ("", 0))[0]
            caller = await run_in_threadpool(self._access.authenticate, _read_token(headers), client)
        except AccessError as error:
            await make_problem(error.status, str(error), headers={"WWW-Authenticate": "Bearer"})(scope, receive, send)
            return
        except (BackendError, SettingsError) as error:
            log.warning("caller cannot be authenticated", error=str(error))
            await make_problem(503, str(error))(scope, receive, send)
            return
        reset = current_caller.set(caller)
        try:
            await self._app(scope, receive, send)
        finally:
            current_caller.reset(reset)


def _read_token(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _find_foreign_origin(headers: Headers) -> str:
    """Return why a request without a token may be a cross-site request of a web page; empty if it is not.

    Browsers send such requests to this machine as well, with the page's origin and host name. A foreign name that
    resolves to this machine is refused.
    """
    if not is_loopback(parse_host_name(headers.get("host", ""))):
        return f"this service answers to localhost only, not to {headers.get('host', '')!r}"
    origin = headers.get("origin")
    if origin is not None and not is_loopback(parse_host_name(origin.partition("://")[2])):
        return f"requests of the web page {origin!r} are refused"
    return ""


def make_problem(status: int, detail: str, title: str = "", headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error response as RFC 9457 defines it. `title` defaults to the phrase of the status."""
    body = ProblemView(title=title or HTTPStatus(status).phrase, status=status, detail=detail).model_dump()
    return JSONResponse(body, status_code=status, media_type=PROBLEM, headers=headers)


def _find_body_problem(body: bytes) -> JSONResponse | None:
    try:
        with serialize_parsing(len(body)):
            load_json(body)
    except JsonBoundsError as error:
        return make_problem(400, f"body: {error}")
    except ManifestError as error:
        return make_problem(422, f"body: {error}", "Cannot be planned")
    except ValueError:
        # The application reports invalid JSON.
        pass
    return None


def _make_too_large_response() -> JSONResponse:
    return make_problem(413, f"the body has more than {MAX_BODY} bytes, the limit", "Content Too Large")
