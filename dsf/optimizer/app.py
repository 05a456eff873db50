"""The HTTP service: plans, scores, probes, with its OpenAPI document at /docs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import metadata
from typing import Annotated, Any, Final, Protocol

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp

import dsf.log
from dsf.errors import (
    AccessError,
    ApplyError,
    BackendError,
    DsfError,
    ManifestError,
    PlanConflictError,
    SolverError,
    UnknownScorerError,
)
from dsf.optimizer.access import Access
from dsf.optimizer.examples import PLAN_REPORT
from dsf.optimizer.guarded import GuardedService
from dsf.optimizer.middleware import PROBLEM, AccessMiddleware
from dsf.optimizer.params import Namespace, OptimizeParams, ResetParams
from dsf.optimizer.service import OptimizerService
from dsf.optimizer.views import PlanList, PlanReport, ProblemView, ResetReport, ScoreList, ScorerView

log = dsf.log.get(__name__)

#: What each error is over HTTP; the first that fits counts.
_STATUS: Final[tuple[tuple[type[DsfError], int, str], ...]] = (
    (AccessError, 403, "Forbidden"),
    (UnknownScorerError, 404, "Not found"),
    (PlanConflictError, 409, "Cannot be applied"),
    (ManifestError, 422, "Cannot be planned"),
    (ApplyError, 502, "Not applied"),
    (BackendError, 502, "The hub cannot be used"),
    (SolverError, 503, "No plan"),
)
_DESCRIPTIONS: Final = {
    401: "No token, or one that is not known.",
    403: "The caller may not do this.",
    404: "There is no such scorer.",
    409: "The plan cannot be applied to the hub as it is; nothing was written.",
    422: "What was asked for cannot be planned: every mistake is named.",
    502: "The hub cannot be used, or a write failed and was undone.",
    503: "The solver is busy, or needed far more time than it was given.",
}


class Mounted(Protocol):
    """Another interface to the same service, served beside this one."""

    #: Takes every path that this service has not.
    asgi: ASGIApp

    def lifespan(self) -> AbstractAsyncContextManager[None]:
        """What has to run while it is served: the lifespan of a mounted application itself never does."""


def make_app(service: OptimizerService, access: Access, mounted: Mounted | None = None) -> FastAPI:
    """The service. Endpoints are plain functions, so FastAPI runs them in its thread pool, off the event loop."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if mounted is None:
            yield
        else:
            async with mounted.lifespan():
                yield

    app = FastAPI(
        title="Dynamic scoring: optimiser",
        version=metadata.version("dynamic-scoring-framework"),
        summary="Where workloads run best: plans from scores, demands and selectable configurations.",
        docs_url="/docs",
        redoc_url=None,
        lifespan=lifespan,
    )
    _add_probes(app, service)
    _add_plans(app, GuardedService(service, access))
    _add_scores(app, GuardedService(service, access))
    app.add_exception_handler(DsfError, _dsf_problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_middleware(AccessMiddleware, access=access)
    if mounted is not None:
        app.mount("/", mounted.asgi)
    return app


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {
        status: {
            "model": ProblemView,
            "description": _DESCRIPTIONS[status],
            "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/ProblemView"}}},
        }
        for status in statuses
    }


def _add_probes(app: FastAPI, service: OptimizerService) -> None:
    # The plans' threads may all be busy, and a probe must not wait for one.
    own_threads = CapacityLimiter(2)

    @app.get("/healthz", tags=["probes"], response_class=PlainTextResponse)
    async def healthz() -> str:
        """200 while the process serves. It does not look at the hub: a restart of this process would not help there."""
        return "ok\n"

    @app.get("/readyz", tags=["probes"], response_class=PlainTextResponse, responses=_errors(502))
    async def readyz() -> str:
        """200 while the hub answers."""
        await to_thread.run_sync(service.check, limiter=own_threads)
        return "ok\n"


def _add_plans(app: FastAPI, service: GuardedService) -> None:
    example: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {"example": PLAN_REPORT}}}}

    @app.post("/optimize", tags=["plans"], responses={**example, **_errors(401, 403, 409, 422, 502, 503)})
    def optimize(params: OptimizeParams) -> PlanReport:
        """Make the best plan and put it in force; with `dryRun` only say what it is.

        It replaces the plan that was in force in the namespace: all of it, or nothing.
        """
        return service.optimize(params)

    @app.post("/reset", tags=["plans"], responses=_errors(401, 403, 422, 502))
    def reset(params: ResetParams) -> ResetReport:
        """Delete every object that plans made in a namespace."""
        return service.reset(params.namespace)

    @app.get("/plans", tags=["plans"], responses=_errors(401, 403, 422, 502))
    def plans(
        namespace: Annotated[Namespace | None, Query(description="Only this namespace; without it all.")] = None,
    ) -> PlanList:
        """The plans in force, one per namespace, read from their objects."""
        return service.plans(namespace)


def _add_scores(app: FastAPI, service: GuardedService) -> None:
    @app.get("/addonplacementscores", tags=["scores"], responses=_errors(401, 403, 422, 502))
    def addonplacementscores(
        namespace: Annotated[
            Namespace | None, Query(description="Only those of this cluster: its namespace; without it all.")
        ] = None,
    ) -> ScoreList:
        """AddOnPlacementScores, each with its scorer's description and dimension format as annotations."""
        return service.list_scores(namespace)

    @app.get("/scorers/{name}", tags=["scores"], responses=_errors(401, 403, 404, 502))
    def scorer(name: str) -> ScorerView:
        """What a scorer measures, whether it works, and its scores."""
        return service.explain_scorer(name)


def _problem(status: int, title: str, detail: str) -> JSONResponse:
    body = ProblemView(title=title, status=status, detail=detail).model_dump()
    return JSONResponse(body, status_code=status, media_type=PROBLEM)


def _dsf_problem(request: Request, error: Exception) -> JSONResponse:
    for kind, status, title in _STATUS:
        if isinstance(error, kind):
            if status >= 500:
                log.warning("request failed", path=request.url.path, error=str(error))
            return _problem(status, title, str(error))
    log.error("request failed", path=request.url.path, error=str(error))
    return _problem(500, "Internal error", str(error))


def _invalid(_: Request, error: Exception) -> JSONResponse:
    """Mistakes in a body, in one line each, without what was sent."""
    items = error.errors() if isinstance(error, RequestValidationError) else ()
    detail = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in items)
    return _problem(422, "Cannot be planned", detail)
