"""What stands before the protocol's own HTTP handling."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dsf.optimizer.access import is_loopback
from dsf.optimizer.middleware import PROBLEM
from dsf.optimizer.views import ProblemView


class Gate:
    """Refuses what a foreign web page made its reader's browser send, and streams on which nothing would ever come.

    The protocol asks every server for the first. It lets through what no browser sent, what a page of this machine
    sent, and what a page of this service sent. Without tokens `dsf.optimizer.middleware` does more: it also looks at
    the name by which the server was found. With tokens that is not needed, as a page does not have one.

    The second: there are no sessions, so a GET has nothing to listen to and would stay open for good.
    """

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app = app
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            if origin is not None and not _is_known(origin, headers.get("host", "")):
                detail = f"requests of the web page {origin!r} are refused; use an MCP client that is not a web page"
                await _problem(403, "Forbidden", detail)(scope, receive, send)
                return
            if scope["path"] == self._path and scope["method"] != "POST":
                detail = f"{scope['method']} is not for {self._path}: every message is a POST, there are no sessions"
                await _problem(405, "Method Not Allowed", detail, allow="POST")(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _problem(status: int, title: str, detail: str, **headers: str) -> JSONResponse:
    body = ProblemView(title=title, status=status, detail=detail).model_dump()
    return JSONResponse(body, status_code=status, media_type=PROBLEM, headers=headers)


def _is_known(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
        return is_loopback(parts.hostname or "") or (bool(host) and parts.netloc == host)
    except ValueError:
        return False
