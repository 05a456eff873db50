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
from fastapi.responses import HTMLResponse, PlainTextResponse
from sse_starlette.sse import EventSourceResponse
from starlette.routing import compile_path

import dsf.log
from dsf.errors import DsfError, UnknownClusterError, UnknownScorerError
from dsf.web.guard import Guard, Network
from dsf.web.live import ROOT, Live
from dsf.web.rendering import blocks, digest, render, with_ages
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


class Site:
    """Makes the pages. `decide` says for a request who looks and what may be done."""

    def __init__(self, sources: Sources, options: Options) -> None:
        self.sources = sources
        self.options = options
        self.live = Live()
        self._version = metadata.version("dynamic-scoring-framework")

    def page(self, request: Request, view: View, names: Mapping[str, str], status: int = 200) -> HTMLResponse:
        """One page. Raises what its view raises."""
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
            subject=names,
        )

    def live_part(self, view: View, context: Mapping[str, Any], root: str, query: Mapping[str, str]) -> str:
        """The part of a page that follows what happens, with the marks of its blocks."""
        return render(view.template, root, {**context, "options": self.options, "query": query})

    def respond(self, request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
        """A whole page from a template that extends the base."""
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
                "subject": {},
                **context,
            },
        )
        return HTMLResponse(with_ages(html), status_code=status)


def make_app(sources: Sources, options: Options) -> FastAPI:
    """The service. Pages are plain functions, so FastAPI runs them in its thread pool."""
    site = Site(sources, options)

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
        return site.respond(
            request, "error.html", 404, title="There is no such page", text="Look for it above.", again=False
        )

    app.add_exception_handler(redis.RedisError, unavailable)
    app.add_exception_handler(DsfError, unknown)
    app.add_exception_handler(404, missing)
