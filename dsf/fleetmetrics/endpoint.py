"""`/metrics` of the fleet: a route of the web service, which renders the metrics once for all concurrent scrapes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import redis
from fastapi import Depends, FastAPI, Header, Query, Response
from fastapi.responses import PlainTextResponse

from dsf.errors import QueryError
from dsf.fleet.api import ERRORS
from dsf.fleet.queries import FleetQueries
from dsf.fleetmetrics.collector import FleetCollector
from dsf.http.metricsrenderer import MetricsRenderer

#: Maximum number of shards.
MAX_SHARDS: Final = 64
#: Maximum characters of the parameter `shard`. Longer texts are rejected first, because int() fails for thousands of
#: digits.
_MAX_SHARD_LENGTH: Final = 15


def add_metrics(
    app: FastAPI,
    client: redis.Redis,
    model: FleetQueries,
    *,
    limit: int,
    home: str,
    needs: Sequence[Callable[..., Any]] = (),
) -> None:
    """Add the route `/metrics` to the app.

    `limit` is the maximum number of series, and `home` the hub's own namespace (`SeriesBudget`). `needs` are FastAPI
    dependencies of the route, such as authentication.
    """
    renderer = MetricsRenderer()

    @functools.cache
    def get_collector(shard: tuple[int, int]) -> FleetCollector:
        # Collectors are cached because each one remembers which series it omitted.
        return FleetCollector(client, limit=limit, shard=shard, model=model, home=home)

    @app.get(
        "/metrics",
        tags=["metrics"],
        response_class=PlainTextResponse,
        responses={400: ERRORS[400]},
        dependencies=[Depends(dependency) for dependency in needs],
    )
    async def metrics(
        accept: Annotated[str, Header(include_in_schema=False)] = "",
        accept_encoding: Annotated[str, Header(include_in_schema=False)] = "",
        shard: Annotated[str, Query(description="`i/n`: only part i of n equal parts of the clusters.")] = "",
    ) -> Response:
        """Return the metrics of the fleet. While Redis cannot be read, 200 with `dynamic_scoring_up 0` alone."""
        # Reading Redis and rendering run in a thread, one scrape at a time.
        body, headers = await renderer.render(get_collector(_parse_shard(shard)), accept, accept_encoding)
        return Response(body, headers=headers)


def _parse_shard(text: str) -> tuple[int, int]:
    """Return i and n of the text `i/n`, (0, 1) for an empty text. Raises QueryError if it is not valid."""
    if not text:
        return 0, 1
    index, _, count = text.partition("/")
    is_numeric = len(text) <= _MAX_SHARD_LENGTH and index.isdecimal() and count.isdecimal()
    if is_numeric and int(index) < int(count) <= MAX_SHARDS:
        return int(index), int(count)
    raise QueryError(f"shard: i/n with i from 0 and below n, n at most {MAX_SHARDS}, such as 0/4")
