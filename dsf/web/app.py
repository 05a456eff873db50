"""The HTTP service: pages, static files, the JSON API, and the metrics of the fleet, from one snapshot of rows.

`/api/v1` has the page's access control, and its description is at /docs. Programs send the token of a login with each
request (`Authorization: Bearer`, or `X-Dsf-Authorization: Bearer` through the API server's service proxy, which removes
the former). `/metrics` needs no login: Prometheus has none, and NetworkPolicies say who may ask.
"""

from __future__ import annotations

import functools
from typing import Any, Final
from urllib.parse import urlsplit

import redis
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import PlainTextResponse, RedirectResponse
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

import dsf.log
from dsf.errors import (
    AccessError,
    BackendError,
    CursorError,
    DsfError,
    QueryError,
    UnknownNameError,
)
from dsf.fleet.api import add_changes, make_router, mistakes, problem, problem_of
from dsf.fleet.path import hub_problems
from dsf.fleetmetrics.endpoint import add_metrics
from dsf.http.apidocs import add_docs
from dsf.http.hosts import METRICS, PROXIED_AUTHORIZATION
from dsf.process import hubclock, threads
from dsf.web.access import LOOK, UserAccess
from dsf.web.actions import ActionRunner
from dsf.web.forms import MAX_TOKEN, add_acts, add_login
from dsf.web.guard import Guard, parse_networks, root_path
from dsf.web.pages import Sources, all_views
from dsf.web.rendering import link, prepare
from dsf.web.site import LoginNeededError, Site, assets
from dsf.web.views import VIEWS, settings_in_force

log = dsf.log.get(__name__)

PREFIX: Final = "/api/v1"


def make_app(sources: Sources, access: UserAccess, acting: ActionRunner) -> FastAPI:
    """Build the service. Pages are plain functions, which FastAPI runs in its thread pool.

    Raises SettingsError.
    """
    prepare()
    settings, site = sources.settings, Site(sources, access)
    # A redirect that only removes the slash would leave the path prefix of a proxy.
    app = FastAPI(
        title="Dynamic scoring",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    _add_probes(app, sources)
    app.mount("/static/{tag}", GZipMiddleware(_Static(packages=[("dsf.web", "static")])))
    for view in all_views(VIEWS):
        app.add_route(view.path, functools.partial(site.page, view))
    add_login(app, site)
    add_acts(app, site, acting)
    add_api(app, site)
    reading = sources.reading
    add_metrics(app, reading.redis, reading.model, limit=settings.exporter_series_limit, home=settings.namespace)
    _add_errors(app, site)
    app.add_middleware(
        Guard,
        hosts=settings.host_names,
        proxies=parse_networks(settings.web_trusted_proxies),
        root_path=root_path(settings.web_root_path),
        has_login=access.login is not None,
    )
    return app


def _add_probes(app: FastAPI, sources: Sources) -> None:
    @app.get("/healthz", response_class=PlainTextResponse)
    def healthz() -> str:
        return "ok\n"

    @app.get("/readyz", response_class=PlainTextResponse)
    def readyz() -> Response:
        problem = threads.problem() or unready(sources.reading.redis)
        return PlainTextResponse(f"{problem or 'ok'}\n", status_code=503 if problem else 200)


def unready(client: redis.Redis) -> str:
    """Why clients would not see the fleet as it is; empty if they do."""
    try:
        # The command is not PING, which Redis refuses while it takes no writes.
        return next(hub_problems(client, hubclock.now()), "")
    except redis.RedisError as error:
        return f"Redis cannot be read: {type(error).__name__}"


class _Static(StaticFiles):
    """Files whose links contain the digest of all of them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Send the file, and say for how long a browser may keep it."""
        answer = await super().get_response(path, scope)
        is_current = scope["path_params"]["tag"] == assets()
        answer.headers["Cache-Control"] = "public, max-age=31536000, immutable" if is_current else "no-cache"
        return answer


def _add_errors(app: FastAPI, site: Site) -> None:
    def answer(request: Request, error: Exception) -> Response:
        if is_api(request):
            return problem_for(request, error)
        if isinstance(error, LoginNeededError):
            return _to_login(request)
        status, title, text = _explained(request, error)
        again = isinstance(error, redis.RedisError) and request.method == "GET"
        return site.respond(request, "error.html", status, title=title, text=text, again=again)

    def not_found(request: Request, error: Exception) -> Response:
        title, text = "There is no such page", "Look for it above."
        return site.respond(request, "error.html", 404, title=title, text=text, again=False)

    for kind in (redis.RedisError, DsfError, LoginNeededError, RequestValidationError):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(404, not_found)


def _to_login(request: Request) -> Response:
    root, path = request.scope["dsf.root"], request.scope["path"]
    if request.method == "GET":
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(link(root, "/login", to=path + query), 303)
    # The form's data is gone: the login page says so, and leads back to the form.
    form = urlsplit(request.headers.get("referer", ""))
    is_own = form.netloc == request.url.netloc and form.path.startswith(f"{root}/act/")
    to = form.path.removeprefix(root) + (f"?{form.query}" if form.query else "") if is_own else "/"
    return RedirectResponse(link(root, "/login", to=to, lost="1"), 303)


def _explained(request: Request, error: Exception) -> tuple[int, str, str]:
    """Status, title and text of the page for an error."""
    match error:
        case redis.RedisError():
            log.warning("redis cannot be read", path=request.scope["path"], error=str(error))
            is_form = request.method != "GET"
            then = "Go back and send it again." if is_form else "This page retries automatically."
            return 503, "Redis cannot be read", f"Scores, schedule and history are in Redis. {then}"
        case AccessError():
            return error.status, "You may not do this", str(error)
        case BackendError():
            log.warning("the API server is unavailable", path=request.scope["path"], error=str(error))
            return 503, "Not now", "The hub's API server does not answer, or refuses this page. Try again; see the log."
        case RequestValidationError():
            return 400, "Invalid request", mistakes(error)
        case QueryError() | CursorError():
            return 400, "Invalid request", str(error)
        case UnknownNameError():
            return 404, "There is no such thing", str(error)
    return 500, "This did not work", str(error)


def _token(request: Request) -> str:
    header = request.headers.get("authorization") or request.headers.get(PROXIED_AUTHORIZATION, "")
    kind, _, token = header.partition(" ")
    return token.strip()[:MAX_TOKEN] if kind.lower() == "bearer" else ""


def is_api(request: Request) -> bool:
    """True if this is a request of a program, which gets problem documents instead of pages."""
    path: str = request.scope["path"]
    return path.startswith(f"{PREFIX}/") or path in (PREFIX, METRICS)


def problem_for(request: Request, error: Exception) -> Response:
    """Return an error for a program."""
    if isinstance(error, LoginNeededError):
        text = "send a token with `Authorization: Bearer`; DSF_API_TOKEN_FILE names its file for `dsf`"
        answer = problem(401, "Not known", text)
    elif isinstance(error, AccessError):
        answer = problem(error.status, "Not allowed", str(error))
    elif isinstance(error, BackendError):
        answer = problem(503, "Not now", "the hub's API server does not say who you are or what you may do; try again")
    else:
        answer = problem_of(request, error)
    if answer.status_code == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def add_api(app: FastAPI, site: Site) -> None:
    """Add the endpoints and their description, for users with read access."""

    def may_look(request: Request) -> None:
        if is_api(request) and (token := _token(request)) and site.access.login is not None:
            request.scope["dsf.caller"] = site.holder(token, request.client.host if request.client else "")
        site.allow(request, LOOK)

    router = make_router(site.sources.reading.model, functools.partial(settings_in_force, site.sources))
    add_changes(router, site.sources.reading.model)

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
