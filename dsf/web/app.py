"""The HTTP service: pages, static files, probes, and the JSON API.

`/api/v1` is the exporter's router with the page's access control, and its description at /docs. Programs send the token
of a login with each request (`Authorization: Bearer`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import redis
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse

import dsf.log
from dsf.errors import (
    AccessError,
    BackendError,
    CursorError,
    DsfError,
    QueryError,
    UnknownClusterError,
    UnknownPlacementError,
    UnknownScorerError,
)
from dsf.fleet.api import add_changes, make_router, mistakes, problem, problem_of
from dsf.http.apidocs import add_docs
from dsf.process import threads
from dsf.web.access import UserAccess
from dsf.web.acting import Acting
from dsf.web.forms import MAX_TOKEN, add_forms
from dsf.web.guard import Guard
from dsf.web.pages import PageView, Sources, all_views
from dsf.web.rendering import link, prepare
from dsf.web.site import LoginNeededError, PageOptions, Site, assets, static_files
from dsf.web.views import VIEWS, settings_in_force

log = dsf.log.get(__name__)

PREFIX: Final = "/api/v1"


def make_app(
    sources: Sources, options: PageOptions, access: UserAccess, client: redis.Redis, acting: Acting
) -> FastAPI:
    """Build the service. Pages are plain functions, which FastAPI runs in its thread pool."""
    prepare()
    site = Site(sources, options, access, client)

    # A redirect that only removes the slash would leave the path prefix of a proxy.
    app = FastAPI(
        title="Dynamic scoring",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    _add_probes(app, sources)
    _add_static(app)
    for view in all_views(VIEWS):
        app.add_api_route(view.path, _endpoint(site, view), methods=["GET", "HEAD"])
    add_forms(app, site, acting)
    add_api(app, site)
    _add_errors(app, site)
    app.add_middleware(Guard, hosts=options.hosts, proxies=options.proxies, root_path=options.root_path)
    return app


def _endpoint(site: Site, view: PageView) -> Callable[[Request], HTMLResponse]:
    def page(request: Request) -> HTMLResponse:
        return site.page(request, view, request.path_params)

    return page


def _add_probes(app: FastAPI, sources: Sources) -> None:
    @app.get("/healthz", response_class=PlainTextResponse)
    def healthz() -> str:
        return "ok\n"

    @app.get("/readyz", response_class=PlainTextResponse)
    def readyz() -> Response:
        try:
            sources.reading.ping()
        except redis.RedisError as error:
            return PlainTextResponse(f"Redis cannot be read: {type(error).__name__}\n", status_code=503)
        problem = threads.problem()
        return PlainTextResponse(f"{problem or 'ok'}\n", status_code=503 if problem else 200)


def _add_static(app: FastAPI) -> None:
    @app.get("/static/{tag}/{name}")
    def static(tag: str, name: str, request: Request) -> Response:
        file = static_files().get(name)
        if file is None:
            return PlainTextResponse("not found\n", status_code=404)
        body, squeezed, kind = file
        # Links contain the digest of all files.
        headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
        if tag != assets():
            headers["Cache-Control"] = "no-cache"
        if re.search(r"\bgzip\b", request.headers.get("accept-encoding", "")):
            headers["Content-Encoding"], body = "gzip", squeezed
        return Response(body, media_type=kind, headers=headers)


def _add_errors(app: FastAPI, site: Site) -> None:
    def unavailable(request: Request, error: Exception) -> HTMLResponse:
        log.warning("redis cannot be read", path=request.scope["path"], error=str(error))
        is_form = request.method != "GET"
        then = "Go back and send it again." if is_form else "This page retries automatically."
        return site.respond(
            request,
            "error.html",
            503,
            title="Redis cannot be read",
            text=f"Scores, schedule and history are in Redis. {then}",
            again=not is_form,
        )

    def unknown(request: Request, error: Exception) -> HTMLResponse:
        known = isinstance(error, UnknownScorerError | UnknownClusterError | UnknownPlacementError)
        title, status = ("There is no such thing", 404) if known else ("This did not work", 500)
        return site.respond(request, "error.html", status, title=title, text=str(error), again=False)

    def missing(request: Request, error: Exception) -> HTMLResponse:
        return site.missing(request)

    def login(request: Request, error: Exception) -> Response:
        path = request.scope["path"]
        query = f"?{request.url.query}" if request.url.query else ""
        if request.method == "GET":
            return RedirectResponse(link(request.scope["dsf.root"], "/login", to=path + query), 303)
        # What was sent is gone: the login page says so, and leads back to the form.
        form = urlsplit(request.headers.get("referer", ""))
        root = request.scope["dsf.root"]
        is_own = form.netloc == request.url.netloc and form.path.startswith(f"{root}/act/")
        to = form.path.removeprefix(root) + (f"?{form.query}" if form.query else "") if is_own else "/"
        return RedirectResponse(link(root, "/login", to=to, lost="1"), 303)

    def refused(request: Request, error: Exception) -> HTMLResponse:
        status = error.status if isinstance(error, AccessError) else 403
        return site.respond(request, "error.html", status, title="You may not do this", text=str(error), again=False)

    def undecided(request: Request, error: Exception) -> HTMLResponse:
        log.warning("the API server is unavailable", path=request.scope["path"], error=str(error))
        text = "The hub's API server does not answer, or refuses this page. Try again; see the log."
        return site.respond(request, "error.html", 503, title="Not now", text=text, again=False)

    def mistaken(request: Request, error: Exception) -> HTMLResponse:
        text = mistakes(error) if isinstance(error, RequestValidationError) else str(error)
        return site.respond(request, "error.html", 400, title="Invalid request", text=text, again=False)

    kinds: dict[type[Exception], Callable[[Request, Any], Response]] = {
        redis.RedisError: unavailable,
        DsfError: unknown,
        LoginNeededError: login,
        AccessError: refused,
        BackendError: undecided,
        QueryError: mistaken,
        CursorError: mistaken,
        RequestValidationError: mistaken,
    }
    for kind, answer in kinds.items():
        app.add_exception_handler(kind, _for_whom(answer))
    app.add_exception_handler(404, missing)


def _for_whom(page: Callable[[Request, Any], Response]) -> Callable[[Request, Exception], Response]:
    def answer(request: Request, error: Exception) -> Response:
        return problem_for(request, error) if is_api(request) else page(request, error)

    return answer


def _token(request: Request) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip()[:MAX_TOKEN] if kind.lower() == "bearer" else ""


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
            request.scope["dsf.caller"] = site.holder(token)
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
