"""`/api/v1` on the page's port: the exporter's router with the page's access control, and its description at /docs.

Programs send the token of a login with each request (`Authorization: Bearer`).
"""

from __future__ import annotations

import functools
from typing import Any, Final

from fastapi import Depends, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse

from dsf.errors import AccessError, BackendError
from dsf.fleet.api import add_changes, make_router, problem, problem_of
from dsf.http.apidocs import add_docs
from dsf.web.site import LoginNeededError, Site
from dsf.web.views import settings_in_force

PREFIX: Final = "/api/v1"
_MAX_TOKEN: Final = 16 * 1024


def _token(request: Request) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip()[:_MAX_TOKEN] if kind.lower() == "bearer" else ""


def is_api(request: Request) -> bool:
    """Whether this is a request of a program, which gets problem documents instead of pages."""
    return bool(request.scope["path"].startswith(f"{PREFIX}/") or request.scope["path"] == PREFIX)


def problem_for(request: Request, error: Exception) -> Response:
    """An error for a program."""
    if isinstance(error, LoginNeededError):
        text = "send a token with `Authorization: Bearer`; DSF_API_TOKEN_FILE names its file for `dsf`"
        return _challenge(problem(401, "Not known", text))
    if isinstance(error, AccessError):
        answer = problem(error.status, "Not allowed", str(error))
        return _challenge(answer) if error.status == 401 else answer
    if isinstance(error, BackendError):
        return problem(503, "Not now", "the hub's API server does not say who you are or what you may do; try again")
    return problem_of(request, error)


def _challenge(answer: JSONResponse) -> JSONResponse:
    answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def add_api(app: FastAPI, site: Site) -> None:
    """Add the endpoints and their description, for users with read access."""

    def may_look(request: Request) -> None:
        if is_api(request) and (token := _token(request)) and site.access.has_login:
            request.scope["dsf.caller"] = site.holder(request, token)
        site.allow(request, "look")

    router = make_router(site.redis, functools.partial(settings_in_force, site.sources), site.sources.reading.model)
    add_changes(router, site.redis)

    @functools.cache
    def described() -> dict[str, Any]:
        summary = "Latest scores, scorers and schedule of the whole fleet; read-only."
        return get_openapi(title=app.title, version=site.version, summary=summary, routes=router.routes)

    app.include_router(router, dependencies=[Depends(may_look)])
    add_docs(app, needs=[may_look])

    @app.get("/openapi.json", dependencies=[Depends(may_look)])
    def openapi(request: Request) -> dict[str, Any]:
        # Below the path prefix of a proxy.
        return described() | {"servers": [{"url": request.scope["dsf.root"] or "/"}]}

    @app.get(f"{PREFIX}/{{rest:path}}", dependencies=[Depends(may_look)])
    def nothing(rest: str) -> Response:
        return problem(404, "Not found", f"there is no {PREFIX}/{rest[:100]}; /docs lists the endpoints")
