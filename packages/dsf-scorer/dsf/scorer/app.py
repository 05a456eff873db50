"""The service: one or more scorers with health, metrics and documentation."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Header, Request, Response, Security
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from dsf.scorer import openapi
from dsf.scorer.bodies import Bodies
from dsf.scorer.definition import Definition, clean_path
from dsf.scorer.endpoint import ScoringEndpoint
from dsf.scorer.errors import ScorerError
from dsf.scorer.metrics import Metrics, ScorerMetrics
from dsf.scorer.page import add_page

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_BODY_LENGTH_HEADERS = frozenset((b"content-length", b"transfer-encoding"))


class ScorerApp:
    """An ASGI application with the endpoints of some scorers.

    `prefix` goes before the path of every scorer; /healthz, /metrics, /docs and /openapi.json are at the root.
    /metrics serves `registry`, to which users may add their own metrics. Raises ScorerError when two scorers have the
    same path or name.
    """

    def __init__(
        self, *scorers: Definition, prefix: str = "", title: str = "", registry: CollectorRegistry | None = None
    ) -> None:
        if not scorers:
            raise ScorerError("ScorerApp(): give at least one Scorer")
        for attribute, values in (
            ("path", [scorer.path for scorer in scorers]),
            ("name", [scorer.name for scorer in scorers]),
            ("score_name", [scorer.score_name for scorer in scorers]),
        ):
            duplicate = next((value for value in values if values.count(value) > 1), None)
            if duplicate is not None:
                raise ScorerError(f"ScorerApp(): two scorers have the {attribute} {duplicate!r}; give each its own")
        self.scorers = scorers
        self.prefix = clean_path("prefix", prefix)
        self.title = title or ", ".join(scorer.name for scorer in scorers)
        self.registry = registry or CollectorRegistry()
        self._api: FastAPI | None = None

    @property
    def api(self) -> FastAPI:
        """The FastAPI application, for additional endpoints.

        Created at first use, because scoring functions are decorated after their scorers are created. Raises
        ScorerError when a scorer has no scoring function.
        """
        if self._api is None:
            self._api = self._make_api()
        return self._api

    def run(self, *, host: str = "127.0.0.1", port: int = 8000) -> None:
        """Serve until Ctrl-C."""
        import uvicorn

        from dsf.scorer.connections import MAX_CONNECTIONS, BoundedHttp

        if not logging.getLogger().handlers:
            logging.basicConfig(
                stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
            )
        uvicorn.run(
            self,
            host=host,
            port=port,
            access_log=False,
            http=BoundedHttp,
            # Maximum number of connections, and of requests in progress. Allow more requests than connections, because
            # the requests of closed connections count until they have been processed.
            limit_concurrency=16 * MAX_CONNECTIONS,
            # Seconds: longer than the 600 seconds for which some load balancers keep idle connections.
            timeout_keep_alive=620,
            h11_max_incomplete_event_size=64 * 1024,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection: the server's startup and shutdown, or a request.

        The startup fails if the application cannot be served.
        """
        if scope["type"] == "lifespan":
            try:
                self._require_servable()
            except ScorerError as error:
                # Send a message instead of raising the exception, because servers would take an exception for an
                # application without lifespan support, and continue.
                await receive()
                await send({"type": "lifespan.startup.failed", "message": f"cannot serve {self.title}: {error}"})
                return
        if scope["type"] == "http":
            if {name for name, _ in scope["headers"]} >= _BODY_LENGTH_HEADERS:
                # Reject the request, because a proxy and this server may disagree on where the next request begins.
                detail = "the request has both headers content-length and transfer-encoding"
                await JSONResponse({"detail": detail}, 400, {"Connection": "close"})(scope, receive, send)
                return
            if scope["method"] == "HEAD":
                # Process it as GET. The server omits the body of the response.
                scope = {**scope, "method": "GET"}
        await self.api(scope, receive, send)

    def _require_servable(self) -> None:
        """Raise ScorerError if the application cannot be served."""
        for scorer in self.scorers:
            if scorer.token is not None:
                scorer.token.require()
        _ = self.api

    def _make_api(self) -> FastAPI:
        # Do not redirect from /config/ to /config, because agents and the hub do not follow redirects.
        api = FastAPI(title=self.title, version="1", docs_url=None, redoc_url=None, redirect_slashes=False)
        api.openapi_tags = [{"name": scorer.name, "description": scorer.description} for scorer in self.scorers]
        metrics = Metrics(self.registry)
        # Room for two of the largest bodies at a time, or for more smaller ones.
        bodies = Bodies(2 * max(scorer.limits.bytes for scorer in self.scorers))
        for scorer in self.scorers:
            endpoint = ScoringEndpoint(scorer, ScorerMetrics(metrics, scorer.score_name), bodies)
            self._add_scorer_endpoints(api, scorer, endpoint)
        _add_service_endpoints(api, self.registry)
        add_page(api)
        paths = [self.prefix + scorer.path for scorer in self.scorers]
        listed_paths = ["/healthz", *(f"{path}/{name}" for path in paths for name in ("config", "scoring"))]
        api.add_exception_handler(404, _make_not_found_handler(listed_paths))
        return api

    def _add_scorer_endpoints(self, api: FastAPI, scorer: Definition, endpoint: ScoringEndpoint) -> None:
        """Add the endpoints `/config` and `/scoring` of one scorer."""
        path = self.prefix + scorer.path

        async def config(request: Request) -> Response:
            """What to ask the source, where to post the response, how often, and the name of the score."""
            # Prefix of our paths as the client sees them: set when mounted, or by uvicorn --root-path.
            root: str = request.scope.get("root_path", "").rstrip("/")
            return JSONResponse(scorer.config(root + self.prefix))

        async def scoring(request: Request) -> Response:
            """Scores of the time series. A result that is not a finite number is left out."""
            return await endpoint.handle(request)

        operation_prefix = scorer.path.strip("/").replace("/", "_") or "scorer"
        shared_arguments: dict[str, Any] = {"tags": [scorer.name]}
        api.get(
            f"{path}/config",
            operation_id=f"{operation_prefix}_config",
            responses=openapi.CONFIG_RESPONSES,
            **shared_arguments,
        )(config)
        api.post(
            f"{path}/scoring",
            operation_id=f"{operation_prefix}_scoring",
            responses=openapi.describe_scoring_responses(with_token=scorer.token is not None),
            openapi_extra=openapi.SCORING_EXTRA,
            # For the document only: the endpoint checks the token itself.
            dependencies=[] if scorer.token is None else [Security(HTTPBearer(scheme_name="token", auto_error=False))],
            **shared_arguments,
        )(scoring)


def _add_service_endpoints(api: FastAPI, registry: CollectorRegistry) -> None:
    """Add the endpoints that the scorers share: /healthz and /metrics."""

    @api.get("/healthz", tags=["service"])
    async def healthz() -> dict[str, str]:
        """Return 200 while the service works."""
        return {"status": "ok"}

    @api.get("/metrics", tags=["service"], response_class=PlainTextResponse)
    def metrics(accept: Annotated[str, Header(include_in_schema=False)] = "") -> Response:
        """Metrics for Prometheus."""
        encoder, content_type = choose_encoder(accept)
        return Response(encoder(registry), headers={"Content-Type": content_type, "Vary": "Accept"})


def _make_not_found_handler(listed_paths: list[str]) -> Any:
    """Return a handler that lists the paths, because a missing or wrong prefix is the most common mistake."""
    detail = f"no such path; there are {', '.join(listed_paths)} and others, all listed at /docs"

    async def handle(_: Request, __: Exception) -> Response:
        return JSONResponse({"detail": detail}, 404)

    return handle
