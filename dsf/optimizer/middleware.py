"""Before any endpoint: who calls, and whether a web page made their browser call.

Plain ASGI, so that it holds for everything below it, mounted applications and streams included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

import dsf.log
from dsf.errors import AccessError, BackendError, SettingsError
from dsf.optimizer.access import Access, is_loopback
from dsf.optimizer.guarded import current_caller

log = dsf.log.get(__name__)

#: Paths that everybody may ask for: probes, and what the API looks like.
PUBLIC: Final = ("/healthz", "/readyz", "/docs", "/openapi.json")
PROBLEM: Final = "application/problem+json"


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
            await _refuse(send, 403, "Forbidden", reason)
            return
        try:
            caller = await run_in_threadpool(self._access.authenticate, _token(headers))
        except AccessError as error:
            await _refuse(send, error.status, "Unauthorized", str(error))
            return
        except (BackendError, SettingsError) as error:
            log.warning("caller cannot be known", error=str(error))
            await _refuse(send, 503, "Service Unavailable", str(error))
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


async def _refuse(send: Send, status: int, title: str, detail: str) -> None:
    body = json.dumps({"type": "about:blank", "title": title, "status": status, "detail": detail}).encode()
    headers: Iterable[tuple[bytes, bytes]] = [(b"content-type", PROBLEM.encode())]
    if status == 401:
        headers = [*headers, (b"www-authenticate", b"Bearer")]
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})
