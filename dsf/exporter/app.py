"""`dsf exporter`, the HTTP service: fleet metrics, probes, and read-only JSON with its OpenAPI document at /docs."""

from __future__ import annotations

import functools
import gzip
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import redis
import uvicorn
from fastapi import FastAPI, Header, HTTPException, Query, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

import dsf.log
from dsf.errors import QueryError
from dsf.exporter.collector import FleetCollector
from dsf.fleet.api import ERRORS, add_problems, make_router
from dsf.fleet.model import FleetModel
from dsf.http.apidocs import add_docs
from dsf.http.hosts import ScrapedHosts
from dsf.http.serving import configured, listen, serve
from dsf.process import memory, threads
from dsf.process.shared import Shared
from dsf.settings import Settings
from dsf.store.client import connect
from dsf.store.ticks import ticks_problem

log = dsf.log.get(__name__)

#: Maximum shards of a scrape.
MAX_SHARDS = 64
#: Links of the page at /.
_PLACES = {
    "docs": "every endpoint of the JSON API, to try out",
    "api/v1/summary": "the whole fleet in numbers",
    "api/v1/scorers": "scorers, and how each does",
    "api/v1/clusters": "clusters, worst first",
    "api/v1/pairs": "scorers on clusters, worst first",
    "api/v1/scores": "the newest scores",
    "api/v1/schedule": "what runs when",
    "metrics": "for Prometheus",
    "readyz": "whether Redis answers and ticks are sent",
}


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; open requests are finished. Returns the exit code.

    Raises SettingsError when the address cannot be bound.
    """
    dsf.log.setup(settings)
    memory.prepare()
    # Below Prometheus' scrape timeout of 10 s, so that a scrape reports Redis as down instead of timing out.
    quick = settings.model_copy(update={"redis_socket_timeout": min(settings.redis_socket_timeout, 5.0)})
    client = connect(quick, name="dsf-exporter", retries=0)
    with listen(*settings.listen_address("exporter")) as listener:
        host, port = listener.getsockname()[:2]
        app = make_app(client, series_limit=settings.exporter_series_limit, hosts=settings.host_names)
        server = uvicorn.Server(configured(app, shutdown_seconds=5))
        memory.settle()
        try:
            serve(server, listener, lambda: log.info("exporter listens", host=host, port=port))
        finally:
            client.close()
    log.info("exporter ended")
    return 0


def make_app(client: redis.Redis, *, series_limit: int = sys.maxsize, hosts: Sequence[str] = ()) -> FastAPI:
    """The service over one Redis client, under the names `hosts` besides addresses and names of Services.

    Endpoints are plain functions, so FastAPI runs them in its thread pool.
    """
    app = FastAPI(
        title="Dynamic scoring",
        version=metadata.version("dynamic-scoring-framework"),
        summary="Latest scores, scorers and schedule of the whole fleet; read-only.",
        docs_url=None,
        redoc_url=None,
    )
    _add_index(app)
    add_docs(app)
    _add_probes(app, client)
    model = FleetModel(client)
    _add_metrics(app, client, model, series_limit)
    app.include_router(make_router(model))
    add_problems(app)
    app.add_middleware(ScrapedHosts, hosts=hosts)
    return app


def _add_index(app: FastAPI) -> None:
    # Relative links, so that a proxy may serve all of it below a path.
    rows = "".join(f'<li><a href="{path}">/{path}</a>: {what}</li>' for path, what in _PLACES.items())
    page = (
        f"<!doctype html><html lang='en'><title>{app.title}</title><h1>{app.title}</h1>"
        f"<p>{app.summary} Version {app.version}.</p><ul>{rows}</ul></html>"
    )

    @app.get("/", include_in_schema=False)
    def index() -> HTMLResponse:
        return HTMLResponse(page)


def _add_probes(app: FastAPI, client: redis.Redis) -> None:
    @app.get("/healthz", tags=["probes"], response_class=PlainTextResponse)
    def healthz() -> str:
        """200 while the process serves. It does not look at Redis: a restart of this process would not help there."""
        return "ok\n"

    @app.get("/readyz", tags=["probes"], response_class=PlainTextResponse, responses={503: ERRORS[503]})
    def readyz() -> str:
        """200 while Redis answers, every thread works and ticks are sent."""
        if problem := threads.problem() or ticks_problem(client, time.time()):
            raise HTTPException(503, problem)
        return "ok\n"


def _add_metrics(app: FastAPI, client: redis.Redis, model: FleetModel, limit: int) -> None:
    @functools.cache
    def scraper_of(shard: tuple[int, int]) -> Scraper:
        # Each has the state of its limit; a few at most.
        return Scraper(FleetCollector(client, limit=limit, shard=shard, model=model))

    @app.get("/metrics", tags=["metrics"], response_class=PlainTextResponse, responses={400: ERRORS[400]})
    def metrics(
        accept: Annotated[str, Header(include_in_schema=False)] = "",
        accept_encoding: Annotated[str, Header(include_in_schema=False)] = "",
        shard: Annotated[str, Query(description="`i/n`: of n equal parts of the clusters the one of number i.")] = "",
    ) -> Response:
        """Metrics of the fleet. While Redis cannot be read the answer is 200 and `dynamic_scoring_up 0` alone."""
        body, content_type = scraper_of(_shard(shard)).scrape(accept)
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if gzip_accepted(accept_encoding):
            # The fastest level: the text is very repetitive, and every scrape pays for it.
            body = gzip.compress(body, compresslevel=1)
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers)


def _shard(text: str) -> tuple[int, int]:
    """Raises QueryError."""
    if not text:
        return 0, 1
    number, _, of = text.partition("/")
    # Python refuses to read thousands of digits.
    if len(text) < 16 and number.isdecimal() and of.isdecimal() and int(number) < int(of) <= MAX_SHARDS:
        return int(number), int(of)
    raise QueryError(f"shard: i/n with i from 0 and below n, n at most {MAX_SHARDS}, such as 0/4")


class Scraper:
    """Renders a collector's metrics as text, in one reading of Redis for concurrent scrapes. Thread-safe.

    A scrape during another one with the same format gets the answer of that one: a slow Redis and many
    Prometheus servers must not pile up readings of the whole fleet.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._texts: Shared[str, bytes] = Shared()

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """The metrics in the format of the `Accept` header, and the content type."""
        encode, content_type = choose_encoder(accept)
        return self._texts.get(content_type, lambda: encode(self._collector)), content_type
