"""The read-only JSON API, /api/v1: a router of FastAPI, which the page mounts.

Lists are paginated (`limit`, `cursor`), so that a response has at most about a megabyte for any fleet. Each response
has a weak ETag of its content without ages and the time of the response.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Callable
from typing import Annotated, Any, Final

import redis
from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client.exposition import gzip_accepted

import dsf.log
from dsf.errors import BusyError, CursorError, DsfError, QueryError, UnknownNameError
from dsf.fleet.changes import ChangeList
from dsf.fleet.queries import FleetQueries
from dsf.fleet.selection import MAX_ROWS, PairFilter
from dsf.fleet.verdict import parse_states
from dsf.fleet.views import (
    Changes,
    ClusterDetail,
    ClusterPage,
    FleetOverview,
    HistoryList,
    PairDetail,
    PairPage,
    Problem,
    ScheduleList,
    ScoreList,
    ScorerDetail,
    ScorerPage,
    SettingView,
    View,
)
from dsf.process.clientlimiter import ClientLimiter, find_client

log = dsf.log.get(__name__)

#: Maximum number of scores in a page, and maximum of their estimated bytes.
_MAX_SCORES, _MAX_BYTES = 250, 900_000
_PROBLEM: Final = "application/problem+json"
#: Error responses of every endpoint.
ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": Problem, "description": "Invalid request; the detail says why."},
    404: {"model": Problem, "description": "No such scorer or cluster; the detail lists the known ones."},
    422: {"model": Problem, "description": "Invalid parameter; the detail says which and why."},
    503: {"model": Problem, "description": "Redis cannot be read, or too many scores are requested at a time."},
}
# Fields that change constantly and are excluded from the ETag; the values from which they are computed are included.
# The pattern only matches numbers, because a label of such a name has a string as its value.
_VOLATILE_FIELDS_PATTERN: Final = re.compile(
    rb'^\{"at":"[^"]*"|"(?:ageSeconds|lagSeconds)":[-+.0-9eE]+|"ages":\{.*?\]\}', re.DOTALL
)

ClusterFilter = Annotated[str | None, Query(description="Only this cluster.")]
ClusterGlob = Annotated[
    str | None, Query(description="Only clusters with this name, which may contain the wildcards `*` and `?`.")
]
ScorerFilter = Annotated[str | None, Query(description="Only this scorer: the name of its DynamicScorer.")]
StateFilter = Annotated[
    list[str] | None,
    Query(
        description="Only pairs in this state: failing, expired, skipped, never, paused, empty or ok. May be repeated."
    ),
]
StageFilter = Annotated[str | None, Query(description="Only pairs whose cycles fail in this stage.")]
ReasonFilter = Annotated[str | None, Query(description="Only pairs that have no new score for this reason.")]
EntryLimit = Annotated[
    int, Query(ge=1, le=10_000, description="Maximum number of pairs in a response; a large response has fewer.")
]
RowLimit = Annotated[int, Query(ge=1, le=MAX_ROWS, description="Maximum number of rows in a response.")]
ChangeLimit = Annotated[int, Query(ge=1, le=5000, description="Maximum number of changes in a response.")]
#: The maximum is the end of the year 9999, which excludes infinity.
Since = Annotated[
    float | None, Query(ge=0, le=253_402_300_799, description="Only changes from this time on, in unix seconds.")
]
CycleLimit = Annotated[int, Query(ge=1, le=500, description="Maximum number of cycles in a response.")]
Cursor = Annotated[str | None, Query(description="`cursor` of the previous response.")]
After = Annotated[str | None, Query(alias="continue", description="`continue` of the previous response.")]


#: Gets the name of a registered scorer, and returns its settings; None if they cannot be read.
SettingsReader = Callable[[str], list[SettingView] | None]


def make_router(fleet: FleetQueries, read_settings: SettingsReader = lambda _: None) -> APIRouter:
    """Return the endpoints. The functions are not coroutines, so that FastAPI runs them in its thread pool."""
    router = APIRouter(prefix="/api/v1", tags=["api"], responses=ERRORS)
    _add_overviews(router, fleet, read_settings)
    _add_pairs(router, fleet)
    _add_lists(router, fleet)
    return router


def add_changes(router: APIRouter, fleet: FleetQueries) -> None:
    """Add the endpoint of users' actions, which is not public because it contains their names and notes."""

    @router.get("/changes", response_model=ChangeList)
    def changes(
        request: Request,
        scorer: ScorerFilter = None,
        cluster: Annotated[str | None, Query(description="Only changes that may affect this cluster.")] = None,
        since: Since = None,
        limit: RowLimit = 100,
        cursor: Cursor = None,
    ) -> Response:
        """Return the actions of users, newest first. There are more pages while `continue` is not null."""
        return _make_response(request, fleet.changes(scorer, cluster, since=since, limit=limit, after=cursor))


def add_problems(app: FastAPI) -> None:
    """Send errors of the router as problem details (RFC 9457)."""
    for kind in (redis.RedisError, DsfError, RequestValidationError):
        app.add_exception_handler(kind, handle_error)


def handle_error(request: Request, error: Exception) -> JSONResponse:
    """Return the problem details of an error (RFC 9457)."""
    if isinstance(error, redis.RedisError):
        log.warning("redis cannot be read", path=request.url.path, error=str(error))
        text = f"{type(error).__name__}: {error}; it is tried again at every request"
        return make_problem_response(503, "Redis cannot be read", text)
    if isinstance(error, BusyError):
        return make_problem_response(503, "Busy", f"{error}; try again")
    if isinstance(error, UnknownNameError):
        return make_problem_response(404, "Not found", str(error))
    if isinstance(error, QueryError | CursorError):
        return make_problem_response(400, "Not understood", str(error))
    if isinstance(error, RequestValidationError):
        return make_problem_response(422, "Not understood", describe_invalid_parameters(error))
    return make_problem_response(500, "Internal error", str(error))


def describe_invalid_parameters(error: RequestValidationError) -> str:
    """Return a line with each invalid parameter and the reason why it is invalid."""
    return "; ".join(f"{'.'.join(map(str, detail['loc'][1:]))}: {detail['msg']}" for detail in error.errors())


def make_problem_response(status: int, title: str, detail: str) -> JSONResponse:
    """Return the response for an error."""
    body = Problem(title=title, status=status, detail=detail).model_dump(by_alias=True)
    return JSONResponse(body, status_code=status, media_type=_PROBLEM)


def _add_overviews(router: APIRouter, fleet: FleetQueries, read_settings: SettingsReader) -> None:
    @router.get("/summary", response_model=FleetOverview)
    def summary(request: Request, limit: RowLimit = MAX_ROWS) -> Response:
        """Return an overview of the whole fleet: numbers of pairs by state, reasons, and ages of scores.

        The lists have at most `limit` scorers, worst first; the sums count all scorers.
        """
        overview = fleet.summary()
        limited_lists = {"scorers": overview.scorers[:limit], "unready": overview.unready[:limit]}
        return _make_response(request, overview.model_copy(update=limited_lists))

    @router.get("/scorers", response_model=ScorerPage)
    def scorers(
        request: Request, scorer: ScorerFilter = None, limit: RowLimit = 200, cursor: Cursor = None
    ) -> Response:
        """Return the registered scorers and their states, sorted by name."""
        return _make_response(request, fleet.scorers(scorer, limit=limit, after=cursor))

    @router.get("/scorers/{scorer}", response_model=ScorerDetail)
    def scorer(request: Request, scorer: str) -> Response:
        """Return one scorer on all its clusters: states, reasons, ages, distribution of its scores, and settings."""
        detail = fleet.scorer(scorer)
        return _make_response(request, detail.model_copy(update={"settings": read_settings(scorer)}))

    @router.get("/clusters", response_model=ClusterPage)
    def clusters(
        request: Request, cluster: ClusterGlob = None, limit: RowLimit = 100, cursor: Cursor = None
    ) -> Response:
        """Return clusters, worst first, each with the states of its scorers."""
        names = fleet.match_clusters(cluster) if cluster is not None else None
        return _make_response(request, fleet.clusters(limit=limit, cursor=cursor, names=names))

    @router.get("/clusters/{cluster}", response_model=ClusterDetail)
    def one_cluster(request: Request, cluster: str) -> Response:
        """Return one cluster: its agent, queue and credentials, and the states of its scorers."""
        return _make_response(request, fleet.cluster(cluster))

    @router.get("/updates", response_model=Changes)
    def updates(request: Request, since: Annotated[int, Query(ge=0)], limit: ChangeLimit = 5000) -> Response:
        """Return the pairs that changed after the change with the number `since` (`sequence` of the summary).

        While `more` is true, request the next changes with the `sequence` of the response.
        """
        return _make_response(request, fleet.updates(since, limit))


def _add_pairs(router: APIRouter, fleet: FleetQueries) -> None:
    @router.get("/pairs", response_model=PairPage)
    def pairs(
        request: Request,
        cluster: ClusterGlob = None,
        scorer: ScorerFilter = None,
        state: StateFilter = None,
        stage: StageFilter = None,
        reason: ReasonFilter = None,
        limit: RowLimit = 100,
        cursor: Cursor = None,
    ) -> Response:
        """Return pairs of scorer and cluster, worst first: state, value, age, next run and reason."""
        pair_filter = PairFilter(
            scorer=scorer,
            clusters=fleet.match_clusters(cluster) if cluster is not None else None,
            states=parse_states(state) if state else None,
            stage=stage,
            reason=reason,
        )
        return _make_response(request, fleet.pairs(pair_filter, limit=limit, cursor=cursor))

    @router.get("/pairs/{cluster}/{scorer}", response_model=PairDetail)
    def pair(request: Request, cluster: str, scorer: str) -> Response:
        """Return one scorer on one cluster: items before and after rounding, counters, and the newest cycles."""
        return _make_response(request, fleet.pair(cluster, scorer))


def _add_lists(router: APIRouter, fleet: FleetQueries) -> None:
    # A request holds up to 8 MiB of scores as text, and one of them as objects, which take ten times as much.
    limiter = ClientLimiter(
        max_running=3,
        max_running_per_client=2,
        max_requests=8,
        seconds=10.0,
        error=BusyError,
        subject="lists of scores are requested",
    )

    @router.get("/scores", response_model=ScoreList)
    def scores(
        request: Request,
        cluster: ClusterFilter = None,
        scorer: ScorerFilter = None,
        state: StateFilter = None,
        limit: EntryLimit = 1000,
        after: After = None,
        cursor: Cursor = None,
    ) -> Response:
        """Return the newest score of each scorer on each cluster, sorted by cluster and scorer.

        With `state`, returns only scores in these states, worst first. A page has at most `limit` scores, and fewer if
        they are long. There are more pages while `continue` is not null; the parameter `cursor` is an alias of
        `continue`.
        """
        states = parse_states(state) if state else None
        with limiter.limit(find_client(request.client.host if request.client else "")):
            page = fleet.scores(
                cluster,
                scorer,
                states=states,
                limit=min(limit, _MAX_SCORES),
                after=cursor or after,
                max_bytes=_MAX_BYTES,
            )
            return _make_response(request, page)

    @router.get("/schedule", response_model=ScheduleList)
    def schedule(
        request: Request,
        cluster: ClusterFilter = None,
        scorer: ScorerFilter = None,
        limit: EntryLimit = 1000,
        after: After = None,
        cursor: Cursor = None,
    ) -> Response:
        """Return the entries of the schedule with overrides and next run, sorted by cluster and scorer.

        A page has at most `limit` entries. There are more pages while `continue` is not null.
        """
        return _make_response(request, fleet.schedule(cluster, scorer, limit=min(limit, 500), after=cursor or after))

    @router.get("/history/{cluster}/{scorer}", response_model=HistoryList)
    def history(
        request: Request, cluster: str, scorer: str, limit: CycleLimit = 100, cursor: Cursor = None
    ) -> Response:
        """Return the newest cycles of one scorer on one cluster, and its counters."""
        return _make_response(request, fleet.history(cluster, scorer, limit=limit, after=cursor))


def _make_response(request: Request, view: View) -> Response:
    """Return the view as JSON, compressed if the client accepts it; 304 if the client has the same content."""
    body = view.model_dump_json(by_alias=True).encode()
    tag = f'W/"{hashlib.blake2b(_VOLATILE_FIELDS_PATTERN.sub(b"", body), digest_size=12).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if len(body) >= 1024 and gzip_accepted(request.headers.get("accept-encoding", "")):
        body = gzip.compress(body, compresslevel=1)
        headers["Content-Encoding"] = "gzip"
    return Response(body, media_type="application/json", headers=headers)
