"""The HTTP service: pages, their live parts, static files and probes."""

from __future__ import annotations

import gzip
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources
from typing import Any, Final
from urllib.parse import parse_qsl

import redis
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from sse_starlette.sse import EventSourceResponse
from starlette.concurrency import run_in_threadpool
from starlette.routing import compile_path

import dsf.log
from dsf.errors import (
    AccessError,
    BackendError,
    CursorError,
    DsfError,
    QueryError,
    UnknownClusterError,
    UnknownScorerError,
)
from dsf.web.access import Access, Caller, Doing, NobodyKnown
from dsf.web.acting import ACTS, Acting, Target
from dsf.web.forms import add_forms
from dsf.web.guard import Guard, Network
from dsf.web.live import ROOT, Live
from dsf.web.rendering import blocks, digest, link, render, with_ages
from dsf.web.sessions import Sessions, cookie_of, form_secret
from dsf.web.views import VIEWS, Sources, View

log = dsf.log.get(__name__)

#: Seconds between two signs of life of an event stream, so that proxies keep it open.
_PING: Final = 15
#: File of `static` -> its type.
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
#: Characters of a page's query that count: a longer one is nobody's bookmark.
_LONGEST_QUERY: Final = 2000


@dataclass(frozen=True)
class Options:
    """What the settings say of the page."""

    hosts: tuple[str, ...] = ()
    proxies: tuple[Network, ...] = ()
    root_path: str = ""
    flower_url: str = ""
    grafana_url: str = ""


class LoginNeededError(Exception):
    """Nobody is known to have sent this request."""


class Site:
    """Makes the pages, and knows who may see them."""

    def __init__(self, sources: Sources, options: Options, access: Access, client: redis.Redis) -> None:
        self.sources = sources
        self.options = options
        self.access = access
        self.redis = client
        self.sessions = Sessions(client)
        self.live = Live()
        self._version = metadata.version("dynamic-scoring-framework")

    def caller(self, request: Request) -> Caller | None:
        """Who sends a request; None for somebody who has not logged in. Raises AccessError."""
        known: Caller | None = request.scope.get("dsf.caller")
        if known is None:
            known = self.access.recognise(request)
            if known is None and self.access.has_login:
                known = self.sessions.caller(cookie_of(request))
            request.scope["dsf.caller"] = known
        return known

    def allow(self, request: Request, doing: Doing, act: str = "", target: Target | None = None) -> Caller:
        """Who sends a request, if they may do this. Raises LoginNeededError and AccessError (403)."""
        caller = self.caller(request)
        if caller is None:
            raise LoginNeededError
        if not self.access.allows(caller, doing):
            needed = "update" if doing == "act" else "get"
            reason = f"{caller.name} may not {doing} here: that takes `{needed} dynamicscorers`"
            if isinstance(self.access, NobodyKnown):
                reason = "this page is read-only: start it with --allow-actions, or let it know people (docs/web.md)"
            if doing == "act":
                self.note_refusal(request, caller.name, act, target, reason)
            raise AccessError(reason, 403)
        return caller

    @staticmethod
    def note_refusal(request: Request, name: str, act: str, target: Target | None, reason: str) -> None:
        """Log an act that was denied."""
        log.warning(
            "act refused",
            caller=name,
            act=act,
            scorer=target.scorer if target else "",
            cluster=(target.cluster or "*") if target else "",
            client=request.client.host if request.client else "",
            reason=reason,
        )

    def missing(self, request: Request) -> HTMLResponse:
        """The answer for what is not there."""
        text = "Look for it above."
        return self.respond(request, "error.html", 404, title="There is no such page", text=text, again=False)

    def page(self, request: Request, view: View, names: Mapping[str, str], status: int = 200) -> HTMLResponse:
        """One page. Raises what its view raises."""
        caller = self.allow(request, "look")
        root, query = request.scope["dsf.root"], dict(request.query_params)
        context = view.build(self.sources, names, query)
        inner = self.live_part(view, context, root, query)
        html = blocks(inner)[ROOT].html
        return self.respond(
            request,
            "page.html",
            status,
            title=context["title"],
            view=view,
            content=html,
            digest=digest(html),
            acts=self._acts(names) if view.acts and self.access.allows(caller, "act") else [],
        )

    @staticmethod
    def _acts(names: Mapping[str, str]) -> list[tuple[str, dict[str, str]]]:
        """What can be asked for on a page, with the query of each form."""
        return [(act, dict(names)) for act in ACTS]

    def live_part(self, view: View, context: Mapping[str, Any], root: str, query: Mapping[str, str]) -> str:
        """The part of a page that follows what happens, with the marks of its blocks."""
        return render(view.template, root, {**context, "options": self.options, "query": query})

    def respond(self, request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
        """A whole page from a template that extends the base."""
        caller = request.scope.get("dsf.caller")
        leave = form_secret(cookie_of(request)) if caller is not None and self.access.has_login else ""
        html = render(
            template,
            request.scope["dsf.root"],
            {
                "assets": assets(),
                "version": self._version,
                "options": self.options,
                "q": request.query_params.get("q", "") if request.url.path.endswith("/find") else "",
                "path": request.scope["path"],
                "query_string": request.url.query,
                "caller": caller,
                "leave": leave,
                "acts": [],
                "all_acts": ACTS,
                **context,
            },
        )
        return HTMLResponse(with_ages(html), status_code=status)


def make_app(sources: Sources, options: Options, access: Access, client: redis.Redis, acting: Acting) -> FastAPI:
    """The service. Pages are plain functions, so FastAPI runs them in its thread pool."""
    site = Site(sources, options, access, client)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await site.live.close()

    app = FastAPI(title="Dynamic scoring", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    _add_probes(app, sources)
    _add_static(app)
    for view in VIEWS:
        app.add_api_route(view.path, _endpoint(site, view), methods=["GET", "HEAD"])
    _add_live(app, site)
    add_forms(app, site, acting)
    _add_errors(app, site)
    app.add_middleware(Guard, hosts=options.hosts, proxies=options.proxies, root_path=options.root_path)
    return app


def _endpoint(site: Site, view: View) -> Callable[[Request], HTMLResponse]:
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
        return PlainTextResponse("ok\n")


def _add_static(app: FastAPI) -> None:
    @app.get("/static/{tag}/{name}")
    def static(tag: str, name: str, request: Request) -> Response:
        found = _files().get(name)
        if found is None:
            return PlainTextResponse("not found\n", status_code=404)
        body, squeezed, kind = found
        # A name that is used has the digest of all files in it.
        headers = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
        if tag != assets():
            headers["Cache-Control"] = "no-cache"
        if re.search(r"\bgzip\b", request.headers.get("accept-encoding", "")):
            headers["Content-Encoding"], body = "gzip", squeezed
        return Response(body, media_type=kind, headers=headers)


@cache
def _files() -> dict[str, tuple[bytes, bytes, str]]:
    folder = resources.files("dsf.web").joinpath("static")
    found = {}
    for file in folder.iterdir():
        kind = _TYPES.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            body = file.read_bytes()
            found[file.name] = (body, gzip.compress(body, mtime=0), kind)
    return found


@cache
def assets() -> str:
    """What tells these static files from those of another version."""
    return digest("".join(f"{name}{body.decode()}" for name, (body, _, _) in sorted(_files().items())))


def _add_live(app: FastAPI, site: Site) -> None:
    patterns = [(compile_path(view.path)[0], view) for view in VIEWS if view.live]

    @app.get("/live")
    async def live(request: Request, path: str, query: str = "", digest: str = "") -> Response:
        await run_in_threadpool(site.allow, request, "look")
        found = next(((match, view) for regex, view in patterns if (match := regex.fullmatch(path))), None)
        if found is None or len(query) > _LONGEST_QUERY:
            return PlainTextResponse("no such page\n", status_code=404)
        if site.live.is_full:
            return PlainTextResponse("too many pages are open\n", status_code=503, headers={"Retry-After": "30"})
        match, view = found
        root, asked = request.scope["dsf.root"], _parsed(query)

        def make() -> str:
            return site.live_part(view, view.build(site.sources, match.groupdict(), asked), root, asked)

        last_id = request.headers.get("last-event-id", "")
        events = site.live.follow(f"{root} {path} {sorted(asked.items())}", make, digest, last_id)
        return EventSourceResponse(events, ping=_PING, headers={"X-Accel-Buffering": "no"})


def _parsed(query: str) -> dict[str, str]:
    return dict(parse_qsl(query, max_num_fields=20))


def _add_errors(app: FastAPI, site: Site) -> None:
    def unavailable(request: Request, error: Exception) -> HTMLResponse:
        log.warning("redis cannot be read", path=request.scope["path"], error=str(error))
        return site.respond(
            request,
            "error.html",
            503,
            title="Redis cannot be read",
            text="Scores, schedule and history are in Redis. This page tries again by itself.",
            again=True,
        )

    def unknown(request: Request, error: Exception) -> HTMLResponse:
        known = isinstance(error, UnknownScorerError | UnknownClusterError)
        title, status = ("There is no such thing", 404) if known else ("This did not work", 500)
        return site.respond(request, "error.html", status, title=title, text=str(error), again=False)

    def missing(request: Request, error: Exception) -> HTMLResponse:
        return site.missing(request)

    def login(request: Request, error: Exception) -> Response:
        path = request.scope["path"]
        if path == "/live":
            return PlainTextResponse("log in first\n", status_code=401)
        to = path + (f"?{request.url.query}" if request.url.query else "") if request.method == "GET" else "/"
        return RedirectResponse(link(request.scope["dsf.root"], "/login", to=to), 303)

    def refused(request: Request, error: Exception) -> HTMLResponse:
        status = error.status if isinstance(error, AccessError) else 403
        return site.respond(request, "error.html", status, title="You may not do this", text=str(error), again=False)

    def undecided(request: Request, error: Exception) -> HTMLResponse:
        log.warning("rights cannot be known", path=request.scope["path"], error=str(error))
        text = "What you may do cannot be found out now: the hub's API server does not answer. Try again."
        return site.respond(request, "error.html", 503, title="Not now", text=text, again=False)

    def mistaken(request: Request, error: Exception) -> HTMLResponse:
        return site.respond(request, "error.html", 400, title="This cannot be asked", text=str(error), again=False)

    app.add_exception_handler(redis.RedisError, unavailable)
    app.add_exception_handler(DsfError, unknown)
    app.add_exception_handler(404, missing)
    app.add_exception_handler(LoginNeededError, login)
    app.add_exception_handler(AccessError, refused)
    app.add_exception_handler(BackendError, undecided)
    for mistake in (QueryError, CursorError, RequestValidationError):
        app.add_exception_handler(mistake, mistaken)
