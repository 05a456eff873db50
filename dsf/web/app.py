"""The HTTP service: pages, static files, the JSON API, and the metrics of the fleet, from one snapshot of rows.

`/api/v1` has the page's access control, and `/docs` describes it. Programs send the token of a login with each request
in the header `Authorization: Bearer`. Through the API server's service proxy, which removes that header, they send
`X-Dsf-Authorization: Bearer`. `/metrics` requires no login from direct clients, which NetworkPolicies restrict. Through
an Ingress or another proxy it requires the same login as the JSON API.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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
from dsf.fleet.api import add_changes, describe_invalid_parameters, handle_error, make_problem_response, make_router
from dsf.fleet.path import find_hub_problems
from dsf.fleetmetrics.endpoint import add_metrics
from dsf.http.apidocs import add_docs
from dsf.http.hosts import METRICS, PROXIED_AUTHORIZATION
from dsf.http.serving import WITHOUT_TELEMETRY
from dsf.process import hubclock, threads
from dsf.web.access import READ_RIGHT, UserAccess
from dsf.web.actions import ActionRunner
from dsf.web.forms import MAX_TOKEN, add_acts, add_login
from dsf.web.guard import Guard, parse_networks, parse_root_path
from dsf.web.pages import Sources, list_views
from dsf.web.rendering import compile_templates, make_link
from dsf.web.site import LoginNeededError, Site, digest_assets
from dsf.web.views import VIEWS, list_effective_settings

log = dsf.log.get(__name__)

#: Path prefix of the JSON API.
PREFIX: Final = "/api/v1"
#: Maximum characters of an unknown path in an error text.
_MAX_SHOWN_PATH: Final = 100


def make_app(sources: Sources, access: UserAccess, action_runner: ActionRunner) -> FastAPI:
    """Return the application. Pages are plain functions, which FastAPI runs in its thread pool.

    Raises SettingsError for invalid trusted proxies or an invalid root path.
    """
    compile_templates()
    settings, site = sources.settings, Site(sources, access)
    # Do not redirect paths with a trailing slash, because the redirect would lack the path prefix of a proxy.
    app = FastAPI(
        title="Dynamic scoring",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        telemetry=WITHOUT_TELEMETRY,
    )
    _add_probes(app, sources)
    app.mount("/static/{tag}", GZipMiddleware(_StaticFiles(packages=[("dsf.web", "static")])))
    for view in list_views(VIEWS):
        app.add_route(view.path, functools.partial(site.render_view, view))
    add_login(app, site)
    add_acts(app, site, action_runner)
    add_api(app, site)
    reading = sources.reading
    add_metrics(
        app,
        reading.redis,
        reading.fleet_queries,
        limit=settings.exporter_series_limit,
        home=settings.namespace,
        needs=[make_scrape_check(site)],
    )
    _add_error_handlers(app, site)
    app.add_middleware(
        Guard,
        hosts=settings.host_names,
        proxies=parse_networks(settings.web_trusted_proxies),
        root_path=parse_root_path(settings.web_root_path),
        has_login=access.login is not None,
    )
    return app


def _add_probes(app: FastAPI, sources: Sources) -> None:
    @app.get("/healthz", response_class=PlainTextResponse)
    def healthz() -> str:
        return "ok\n"

    @app.get("/readyz", response_class=PlainTextResponse)
    def readyz() -> Response:
        problem = threads.describe_failing_threads() or describe_unreadiness(sources.reading.redis)
        return PlainTextResponse(f"{problem or 'ok'}\n", status_code=503 if problem else 200)


def describe_unreadiness(client: redis.Redis) -> str:
    """Return why clients would not see the current state of the fleet; empty if they would."""
    try:
        # Do not use PING, because Redis refuses it while it refuses writes.
        return next(find_hub_problems(client, hubclock.now()), "")
    except redis.RedisError as error:
        return f"Redis cannot be read: {type(error).__name__}"


class _StaticFiles(StaticFiles):
    """Serves the static files. The path of a file contains the digest of all static files."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return the file with caching headers. A browser may cache it for a year if the digest is current."""
        response = await super().get_response(path, scope)
        is_current = scope["path_params"]["tag"] == digest_assets()
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if is_current else "no-cache"
        return response


def _add_error_handlers(app: FastAPI, site: Site) -> None:
    def handle_error(request: Request, error: Exception) -> Response:
        if is_api(request):
            return build_problem_response(request, error)
        if isinstance(error, LoginNeededError):
            return _redirect_to_login(request)
        status, title, text = _describe_error(request, error)
        retries = isinstance(error, redis.RedisError) and request.method == "GET"
        return site.respond(request, "error.html", status, title=title, text=text, again=retries)

    def handle_not_found(request: Request, error: Exception) -> Response:
        title, text = "There is no such page", "Look for it above."
        return site.respond(request, "error.html", 404, title=title, text=text, again=False)

    for error_type in (redis.RedisError, DsfError, LoginNeededError, RequestValidationError):
        app.add_exception_handler(error_type, handle_error)
    app.add_exception_handler(404, handle_not_found)


def _redirect_to_login(request: Request) -> Response:
    root, path = request.scope["dsf.root"], request.scope["path"]
    if request.method == "GET":
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(make_link(root, "/login", to=path + query), 303)
    # The login page links back to the form and says that its fields are lost, because a redirect cannot repeat a POST.
    form = urlsplit(request.headers.get("referer", ""))
    is_own_form = form.netloc == request.url.netloc and form.path.startswith(f"{root}/act/")
    form_path = form.path.removeprefix(root) + (f"?{form.query}" if form.query else "") if is_own_form else "/"
    return RedirectResponse(make_link(root, "/login", to=form_path, lost="1"), 303)


def _describe_error(request: Request, error: Exception) -> tuple[int, str, str]:
    """Return status, title and text of the page for an error."""
    match error:
        case redis.RedisError():
            log.warning("redis cannot be read", path=request.scope["path"], error=str(error))
            is_form = request.method != "GET"
            next_step = "Go back and send it again." if is_form else "This page retries automatically."
            return 503, "Redis cannot be read", f"Scores, schedule and history are in Redis. {next_step}"
        case AccessError():
            return error.status, "You may not do this", str(error)
        case BackendError():
            log.warning("the API server is unavailable", path=request.scope["path"], error=str(error))
            return 503, "Not now", "The hub's API server does not answer, or refuses this page. Try again; see the log."
        case RequestValidationError():
            return 400, "Invalid request", describe_invalid_parameters(error)
        case QueryError() | CursorError():
            return 400, "Invalid request", str(error)
        case UnknownNameError():
            return 404, "There is no such thing", str(error)
    return 500, "This did not work", str(error)


def _read_bearer_token(request: Request) -> str:
    header = request.headers.get("authorization") or request.headers.get(PROXIED_AUTHORIZATION, "")
    scheme, _, token = header.partition(" ")
    return token.strip()[:MAX_TOKEN] if scheme.lower() == "bearer" else ""


def is_api(request: Request) -> bool:
    """Return True if a program sent the request. Programs get errors as problem documents instead of pages."""
    path: str = request.scope["path"]
    return path.startswith(f"{PREFIX}/") or path in (PREFIX, METRICS)


def build_problem_response(request: Request, error: Exception) -> Response:
    """Return the response to a program's request that failed with this error."""
    if isinstance(error, LoginNeededError):
        text = "send a token with `Authorization: Bearer`; DSF_API_TOKEN_FILE names its file for `dsf`"
        response = make_problem_response(401, "Not known", text)
    elif isinstance(error, AccessError):
        response = make_problem_response(error.status, "Not allowed", str(error))
    elif isinstance(error, BackendError):
        text = "the hub's API server does not say who you are or what you may do; try again"
        response = make_problem_response(503, "Not now", text)
    else:
        response = handle_error(request, error)
    if response.status_code == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def authorize_program(site: Site, request: Request) -> None:
    """Raise LoginNeededError or AccessError unless the user of a request has read access."""
    if is_api(request) and (token := _read_bearer_token(request)) and site.access.login is not None:
        request.scope["dsf.caller"] = site.authenticate_token(token, request.client.host if request.client else "")
    site.allow(request, READ_RIGHT)


def make_scrape_check(site: Site) -> Callable[[Request], None]:
    """Return a dependency that requires read access for scrapes through a proxy, such as an Ingress.

    No NetworkPolicy restricts the clients of a proxy.
    """

    def require_scrape_access(request: Request) -> None:
        if not request.scope["dsf.direct"]:
            authorize_program(site, request)

    return require_scrape_access


def add_api(app: FastAPI, site: Site) -> None:
    """Add the endpoints of the JSON API and their OpenAPI description, for users with read access."""

    def require_read_access(request: Request) -> None:
        authorize_program(site, request)

    router = make_router(site.sources.reading.fleet_queries, functools.partial(list_effective_settings, site.sources))
    add_changes(router, site.sources.reading.fleet_queries)

    @functools.cache
    def build_description() -> dict[str, Any]:
        summary = "Latest scores, scorers and schedule of the whole fleet; read-only."
        return get_openapi(title=app.title, version=site.version, summary=summary, routes=router.routes)

    app.include_router(router, dependencies=[Depends(require_read_access)])
    add_docs(app, needs=[require_read_access])

    @app.get("/openapi.json", dependencies=[Depends(require_read_access)])
    def openapi(request: Request) -> dict[str, Any]:
        # The server's URL is set per request, because it includes the path prefix of the proxy.
        return build_description() | {"servers": [{"url": request.scope["dsf.root"] or "/"}]}

    @app.get(f"{PREFIX}/{{rest:path}}", dependencies=[Depends(require_read_access)])
    def unknown_endpoint(rest: str) -> Response:
        return make_problem_response(
            404, "Not found", f"there is no {PREFIX}/{rest[:_MAX_SHOWN_PATH]}; /docs lists the endpoints"
        )
