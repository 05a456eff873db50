"""The HTTP service: fleet metrics, probes, and read-only JSON with its OpenAPI document at /docs."""

from __future__ import annotations

import gzip
from importlib import metadata
from typing import Annotated

import redis
from fastapi import FastAPI, Header, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from prometheus_client.exposition import gzip_accepted

import dsf.log
from dsf.errors import DsfError, UnknownClusterError, UnknownScorerError
from dsf.exporter.collector import FleetCollector
from dsf.exporter.scrape import Scraper
from dsf.fleet.reader import FleetReader
from dsf.fleet.views import HistoryList, Problem, ScheduleList, ScoreList, ScorerList
from dsf.http.apidocs import add_docs

log = dsf.log.get(__name__)

_PROBLEM = "application/problem+json"
_ERRORS: dict[int | str, dict[str, object]] = {
    404: {"model": Problem, "description": "No such scorer or cluster; the detail names those that there are."},
    503: {"model": Problem, "description": "Redis cannot be read."},
}

#: What the page at / leads to.
_PLACES = {
    "docs": "every endpoint of the JSON API, to try out",
    "api/v1/scorers": "scorers, and how each does",
    "api/v1/scores": "the newest scores",
    "api/v1/schedule": "what runs when",
    "metrics": "for Prometheus",
    "readyz": "whether Redis answers",
}

ClusterFilter = Annotated[str | None, Query(description="Only this cluster.")]
ScorerFilter = Annotated[str | None, Query(description="Only this scorer: the name of its DynamicScorer.")]
Limit = Annotated[int, Query(ge=1, le=10_000, description="Most scorers on clusters in one answer.")]
After = Annotated[str | None, Query(alias="continue", description="`continue` of the answer before this one.")]


def make_app(client: redis.Redis) -> FastAPI:
    """The service over one Redis client. Endpoints are plain functions, so FastAPI runs them in its thread pool."""
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
    _add_metrics(app, client)
    _add_api(app, client)
    app.add_exception_handler(redis.RedisError, _redis_problem)
    app.add_exception_handler(DsfError, _dsf_problem)
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

    @app.get("/readyz", tags=["probes"], response_class=PlainTextResponse, responses={503: _ERRORS[503]})
    def readyz() -> str:
        """200 while Redis answers."""
        client.ping()
        return "ok\n"


def _add_metrics(app: FastAPI, client: redis.Redis) -> None:
    scraper = Scraper(FleetCollector(client))

    @app.get("/metrics", tags=["metrics"], response_class=PlainTextResponse)
    def metrics(
        accept: Annotated[str, Header(include_in_schema=False)] = "",
        accept_encoding: Annotated[str, Header(include_in_schema=False)] = "",
    ) -> Response:
        """Metrics of the fleet. While Redis cannot be read the answer is 200 and `dynamic_scoring_up 0` alone."""
        body, content_type = scraper.scrape(accept)
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if gzip_accepted(accept_encoding):
            # The fastest level: the texts are very repetitive, and this is in the path of every scrape.
            body = gzip.compress(body, compresslevel=1)
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers)


def _add_api(app: FastAPI, client: redis.Redis) -> None:
    fleet = FleetReader(client)

    @app.get("/api/v1/scores", tags=["api"], responses=_ERRORS)
    def scores(
        cluster: ClusterFilter = None, scorer: ScorerFilter = None, limit: Limit = 1000, after: After = None
    ) -> ScoreList:
        """The newest score of every scorer on every cluster, sorted by cluster and scorer.

        At most `limit` in one answer; while its `continue` is not null, there are more.
        """
        return fleet.scores(cluster, scorer, limit=limit, after=after)

    @app.get("/api/v1/scorers", tags=["api"], responses=_ERRORS)
    def scorers(scorer: ScorerFilter = None) -> ScorerList:
        """Every registered scorer and how it does."""
        return fleet.scorers(scorer)

    @app.get("/api/v1/schedule", tags=["api"], responses=_ERRORS)
    def schedule(
        cluster: ClusterFilter = None, scorer: ScorerFilter = None, limit: Limit = 1000, after: After = None
    ) -> ScheduleList:
        """Every entry of the schedule with what people changed, and when it runs next, sorted by cluster and scorer.

        At most `limit` in one answer; while its `continue` is not null, there are more.
        """
        return fleet.schedule(cluster, scorer, limit=limit, after=after)

    @app.get("/api/v1/history/{cluster}/{scorer}", tags=["api"], responses=_ERRORS)
    def history(cluster: str, scorer: str) -> HistoryList:
        """The newest cycles of one scorer on one cluster, and its books."""
        return fleet.history(cluster, scorer)


def _problem(status: int, title: str, detail: str) -> JSONResponse:
    body = Problem(title=title, status=status, detail=detail).model_dump(by_alias=True)
    return JSONResponse(body, status_code=status, media_type=_PROBLEM)


def _redis_problem(request: Request, error: Exception) -> JSONResponse:
    log.warning("redis cannot be read", path=request.url.path, error=str(error))
    return _problem(503, "Redis cannot be read", f"{type(error).__name__}: {error}; it is tried again at every request")


def _dsf_problem(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, UnknownScorerError | UnknownClusterError):
        return _problem(404, "Not found", str(error))
    return _problem(500, "Internal error", str(error))
