"""The HTTP service: plans, scores, probes, with its OpenAPI document at /docs."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib.resources import files
from typing import Annotated, Any, Final, Protocol

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

import dsf.log
from dsf.boundedjson import serialize_parsing
from dsf.errors import AccessError, BackendError, DsfError, ManifestError, UnknownScorerError
from dsf.http.apidocs import add_docs
from dsf.http.serving import WITHOUT_TELEMETRY
from dsf.optimizer.errors import ApplyError, PlanConflictError, SolverError
from dsf.optimizer.middleware import PROBLEM, AccessMiddleware, BodyCheck, make_problem
from dsf.optimizer.params import Namespace, OptimizeParams, ResetParams
from dsf.optimizer.requestbody import MAX_BODY, format_errors
from dsf.optimizer.service import OptimizerService
from dsf.optimizer.views import PlanList, PlanReport, ProblemView, ResetReport, ScoreList, ScorerView
from dsf.process import threads

log = dsf.log.get(__name__)

#: HTTP status and title of each error; the first match applies.
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
    400: "The body cannot be parsed: it is nested too deeply, or has too many values.",
    401: "Missing or unknown token.",
    403: "The caller may not do this.",
    404: "There is no such scorer.",
    409: "The plan cannot be applied to the current state of the hub; nothing was written.",
    413: f"The body has more than {MAX_BODY} bytes.",
    422: "The request cannot be planned: every mistake is listed.",
    502: "The hub is unavailable, or a write failed and was rolled back.",
    503: "The solver is busy, exceeded its time limit by far, or is shutting down.",
}


class Mounted(Protocol):
    """An interface of this process that is served beside the HTTP API, such as MCP."""

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle each path that this service does not have."""

    def lifespan(self) -> AbstractAsyncContextManager[None]:
        """Return a context that runs while the application is served.

        ASGI servers ignore the lifespan of mounted applications.
        """


def make_app(service: OptimizerService, mounted: Mounted | None = None) -> FastAPI:
    """Return the application. Endpoints are plain functions, which FastAPI runs in its thread pool."""
    app = FastAPI(
        title="Dynamic scoring: optimiser",
        # The version of the API, which everybody may see. Only logged-in users may see the version of the program.
        version="1",
        summary="Plans of workloads from scores, demands and selectable configurations.",
        docs_url=None,
        redoc_url=None,
        telemetry=WITHOUT_TELEMETRY,
        lifespan=None if mounted is None else lambda _: mounted.lifespan(),
    )
    app.router.route_class = _ThreadedRoute
    add_docs(app)
    _add_probes(app, service)
    _add_plans(app, service)
    _add_scores(app, service)
    app.add_exception_handler(DsfError, _report_problem)
    app.add_exception_handler(RequestValidationError, _report_invalid_body)
    app.add_exception_handler(HTTPException, _report_refusal)
    app.add_exception_handler(_InvalidBodyError, _report_invalid_model)
    app.add_middleware(BodyCheck)
    # The middleware that is added last runs first.
    app.add_middleware(AccessMiddleware, access=service.access)
    if mounted is not None:
        app.mount("/", mounted.asgi)
    return app


class _InvalidBodyError(HTTPException):
    """A body that does not match the model of its endpoint.

    The class is an HTTPException, because FastAPI passes no other exception on from `Request.json`.
    """


class _ThreadedRoute(APIRoute):
    """Validates bodies in a thread, one large body at a time.

    FastAPI validates in the event loop, where bodies of 4 MiB from a few clients delay probes for seconds.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        model: Any = self.body_field.field_info.annotation if self.body_field is not None else None
        if model is None:
            return handle

        class ValidatedRequest(Request):
            async def json(self) -> Any:
                """Return the body as the model, which FastAPI does not validate again."""
                return await to_thread.run_sync(partial(_validate, model, await self.body()))

        async def handle_validated(request: Request) -> Response:
            return await handle(ValidatedRequest(request.scope, request.receive))

        return handle_validated


def _validate(model: type[BaseModel], body: bytes) -> BaseModel:
    """Return the body as the model. Raises json.JSONDecodeError, and _InvalidBodyError with all errors."""
    with serialize_parsing(len(body)):
        document = json.loads(body)
        try:
            return model.model_validate(document)
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)
    located = ({**detail, "loc": ("body", *detail["loc"])} for detail in details)
    raise _InvalidBodyError(422, format_errors(located))


def _list_errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {
        status: {
            "model": ProblemView,
            "description": _DESCRIPTIONS[status],
            "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/ProblemView"}}},
        }
        for status in statuses
    }


def _add_probes(app: FastAPI, service: OptimizerService) -> None:
    # Probes have threads of their own, because plans may occupy all others.
    own_threads = CapacityLimiter(2)

    @app.get("/healthz", tags=["probes"], response_class=PlainTextResponse)
    async def healthz() -> str:
        """200 while the process serves. It does not check the hub: a restart of this process would not help there."""
        return "ok\n"

    @app.get("/readyz", tags=["probes"], response_class=PlainTextResponse, responses=_list_errors(502, 503))
    async def readyz() -> str:
        """200 while the hub answers and every thread works."""
        if problem := threads.describe_failing_threads():
            raise HTTPException(503, problem)
        await to_thread.run_sync(service.check, limiter=own_threads)
        return "ok\n"


def _add_plans(app: FastAPI, service: OptimizerService) -> None:
    example_report = json.loads(files("dsf.optimizer").joinpath("example.json").read_text(encoding="utf-8"))
    example: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {"example": example_report}}}}

    @app.post(
        "/optimize", tags=["plans"], responses={**example, **_list_errors(400, 401, 403, 409, 413, 422, 502, 503)}
    )
    def optimize(params: OptimizeParams) -> PlanReport:
        """Compute the best plan and apply it; with `dryRun` only return it.

        It replaces the namespace's plan in force atomically.
        """
        return service.propose(params) if params.dry_run else service.apply(params)

    @app.post("/reset", tags=["plans"], responses=_list_errors(400, 401, 403, 413, 422, 502))
    def reset(params: ResetParams) -> ResetReport:
        """Delete every object that plans created in a namespace."""
        return service.reset(params.namespace)

    @app.get("/plans", tags=["plans"], responses=_list_errors(401, 403, 422, 502))
    def plans(
        namespace: Annotated[Namespace | None, Query(description="Only this namespace; default: all.")] = None,
    ) -> PlanList:
        """Return the plans in force, one per namespace, read from their objects."""
        return service.plans(namespace)


def _add_scores(app: FastAPI, service: OptimizerService) -> None:
    @app.get("/addonplacementscores", tags=["scores"], responses=_list_errors(401, 403, 422, 502))
    def addonplacementscores(
        namespace: Annotated[
            Namespace | None, Query(description="Only those of this cluster: its namespace; default: all.")
        ] = None,
    ) -> ScoreList:
        """AddOnPlacementScores, each with its scorer's description and dimension format as annotations."""
        return service.list_scores(namespace)

    @app.get("/scorers/{name}", tags=["scores"], responses=_list_errors(401, 403, 404, 502))
    def scorer(name: str) -> ScorerView:
        """What a scorer measures, whether it works, and its scores."""
        return service.explain_scorer(name)


def _report_problem(request: Request, error: Exception) -> JSONResponse:
    for kind, status, title in _STATUS:
        if isinstance(error, kind):
            if status >= 500:
                log.warning("request failed", path=request.url.path, error=str(error))
            return make_problem(status, str(error), title)
    log.error("request failed", path=request.url.path, error=str(error))
    return make_problem(500, str(error), "Internal error")


def _report_invalid_body(_: Request, error: Exception) -> JSONResponse:
    """Return a response with the errors in a body, without the sent values."""
    detail = format_errors(error.errors()) if isinstance(error, RequestValidationError) else str(error)
    return make_problem(422, detail, "Cannot be planned")


def _report_invalid_model(_: Request, error: Exception) -> JSONResponse:
    detail = error.detail if isinstance(error, HTTPException) else str(error)
    return make_problem(422, detail, "Cannot be planned")


def _report_refusal(_: Request, error: Exception) -> JSONResponse:
    """Return a response for an error of FastAPI itself, such as an unknown path or method."""
    if not isinstance(error, HTTPException):
        return make_problem(500, str(error))
    return make_problem(error.status_code, error.detail, headers=error.headers)
