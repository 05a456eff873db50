"""`/metrics` of the fleet: a route of the web service, which renders the metrics once for all concurrent scrapes."""

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

#: Maximum number of shards.
MAX_SHARDS: Final = 64
#: Maximum characters of the parameter `shard`. Longer texts are rejected first, because int() fails for thousands of
#: digits.
_MAX_SHARD_LENGTH: Final = 15


def add_metrics(app: FastAPI, client: redis.Redis, model: FleetQueries, *, limit: int, home: str) -> None:
    """Add the route `/metrics` to the app.

    `limit` is the maximum number of series, and `home` the hub's own namespace (`SeriesBudget`).
    """

    @functools.cache
    def get_scraper(shard: tuple[int, int]) -> Scraper:
        # Scrapers are cached because each collector remembers which series it omitted.
        return Scraper(FleetCollector(client, limit=limit, shard=shard, model=model, home=home))

    @app.get("/metrics", tags=["metrics"], response_class=PlainTextResponse, responses={400: ERRORS[400]})
    def metrics(
        accept: Annotated[str, Header(include_in_schema=False)] = "",
        accept_encoding: Annotated[str, Header(include_in_schema=False)] = "",
        shard: Annotated[str, Query(description="`i/n`: only part i of n equal parts of the clusters.")] = "",
    ) -> Response:
        """Return the metrics of the fleet. While Redis cannot be read, 200 with `dynamic_scoring_up 0` alone."""
        body, content_type = get_scraper(_parse_shard(shard)).scrape(accept)
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if gzip_accepted(accept_encoding):
            # Level 1 is the fastest, and sufficient because the text is very repetitive.
            body = gzip.compress(body, compresslevel=1)
            headers["Content-Encoding"] = "gzip"
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


class Scraper:
    """Renders a collector's metrics as text, and reads Redis once for concurrent scrapes. Thread-safe.

    Concurrent scrapes with the same format share one response, so that reads of the whole fleet do not pile up if
    Redis is slow or many Prometheus servers scrape.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._texts: ValueCache[str, bytes] = ValueCache()

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in the format that the `Accept` header requests, and the content type."""
        encode, content_type = choose_encoder(accept)
        return self._texts.get(content_type, lambda: encode(self._collector)), content_type
