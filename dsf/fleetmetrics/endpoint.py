"""`/metrics` of the fleet: a route for the web service, which renders each scrape once for all who ask meanwhile."""

from __future__ import annotations

import functools
import gzip
from typing import Annotated, Final

import redis
from fastapi import FastAPI, Header, Query, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

from dsf.errors import QueryError
from dsf.fleet.api import ERRORS
from dsf.fleet.queries import FleetQueries
from dsf.fleetmetrics.collector import FleetCollector
from dsf.process.valuecache import ValueCache

#: Maximum shards of a scrape.
MAX_SHARDS: Final = 64


def add_metrics(app: FastAPI, client: redis.Redis, model: FleetQueries, *, limit: int, home: str) -> None:
    """Add the route. `limit` is the number of series, `home` the hub's own namespace (`SeriesBudget`)."""

    @functools.cache
    def scraper_of(shard: tuple[int, int]) -> Scraper:
        # Each has the state of its limit; a few at most.
        return Scraper(FleetCollector(client, limit=limit, shard=shard, model=model, home=home))

    @app.get("/metrics", tags=["metrics"], response_class=PlainTextResponse, responses={400: ERRORS[400]})
    def metrics(
        accept: Annotated[str, Header(include_in_schema=False)] = "",
        accept_encoding: Annotated[str, Header(include_in_schema=False)] = "",
        shard: Annotated[str, Query(description="`i/n`: of n equal parts of the clusters the one of number i.")] = "",
    ) -> Response:
        """Return the metrics of the fleet. While Redis cannot be read, 200 with `dynamic_scoring_up 0` alone."""
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

    A scrape during another one with the same format gets the response of that one: a slow Redis and many
    Prometheus servers must not pile up readings of the whole fleet.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._texts: ValueCache[str, bytes] = ValueCache()

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in the format of the `Accept` header, and the content type."""
        encode, content_type = choose_encoder(accept)
        return self._texts.get(content_type, lambda: encode(self._collector)), content_type
