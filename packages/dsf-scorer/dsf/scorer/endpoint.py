"""Processes a scoring request: checks the token, waits for a turn, reads the body, calls the function, responds."""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import cast

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from dsf.scorer.bodies import Bodies, Body
from dsf.scorer.definition import Definition, ScoringResults, Sources
from dsf.scorer.errors import RefusedError, Unavailable
from dsf.scorer.metrics import ScorerMetrics
from dsf.scorer.requestbody import parse, parse_sources
from dsf.scorer.responsebody import EncodedScores, encode
from dsf.scorer.series import Series

log = logging.getLogger("dsf.scorer")


class ScoringEndpoint:
    """The endpoint POST .../scoring of one scorer."""

    def __init__(self, scorer: Definition, metrics: ScorerMetrics, bodies: Bodies) -> None:
        """`bodies` are those of all scorers of the application."""
        self._scorer = scorer
        self._limits = scorer.limits
        self._metrics = metrics
        self._bodies = bodies
        self._logged_reasons: set[str] = set()
        self._is_async = inspect.iscoroutinefunction(scorer.function)
        self._semaphore = asyncio.Semaphore(self._limits.concurrency) if self._limits.concurrency else None

    async def handle(self, request: Request) -> Response:
        """Respond to a request, and count it."""
        started_at = time.perf_counter()
        try:
            scores = await self._compute_scores(request)
            response = Response(scores.body, media_type="application/json")
            self._metrics.count_results(scores.results, scores.refusal_counts)
            if scores.refusal_counts:
                self._log_missing_results(scores)
        except RefusedError as error:
            content = {"detail": error.detail} | ({"error_id": error.error_id} if error.error_id else {})
            response = JSONResponse(content, error.status, error.headers)
        self._metrics.count_response(response.status_code, time.perf_counter() - started_at)
        return response

    def _log_missing_results(self, scores: EncodedScores) -> None:
        """Log the reasons of missing results.

        Each reason is a warning only once: later requests are likely to have the same reason, and metrics count all.
        """
        log.info("results left out scorer=%s %s", self._scorer.name, _format_counts(scores.refusal_counts))
        for reason in scores.refusal_counts.keys() - self._logged_reasons:
            # The reasons come from the scoring function, which should have only a few.
            if len(self._logged_reasons) < 20:
                self._logged_reasons.add(reason)
                log.warning(
                    "results left out scorer=%s reason=%s count=%d of=%d; this is logged once, /metrics counts all",
                    self._scorer.name,
                    reason,
                    scores.refusal_counts[reason],
                    scores.results + scores.refusal_counts.total(),
                )

    async def _compute_scores(self, request: Request) -> EncodedScores:
        if self._scorer.token is not None:
            self._scorer.token.check(request.headers.getlist("authorization"))
        async with self._limit_concurrency(), self._receive(request) as body:
            self._metrics.bytes.observe(len(body.data))
            if self._is_async:
                return await self._run_async(await run_in_threadpool(self._parse_once, body))
            return await run_in_threadpool(self._run, body)

    @asynccontextmanager
    async def _limit_concurrency(self) -> AsyncIterator[None]:
        """Wait before the body is read, so that waiting requests stay in network buffers, not in memory."""
        if self._semaphore is not None:
            try:
                async with asyncio.timeout(self._limits.wait_seconds):
                    await self._semaphore.acquire()
            except TimeoutError:
                detail = f"{self._limits.concurrency} requests are scored at a time, and this one had no turn"
                raise RefusedError(503, detail, headers={"Retry-After": "1"}) from None
        try:
            with self._metrics.running.track_inprogress():
                yield
        finally:
            if self._semaphore is not None:
                self._semaphore.release()

    @asynccontextmanager
    async def _receive(self, request: Request) -> AsyncIterator[Body]:
        """Receive the body, and yield it when the memory allows to score it."""
        deadline = asyncio.timeout(self._limits.read_seconds)
        with self._bodies.receiving(deadline) as body:
            await self._read(request, body)
            size = len(body.data)
            try:
                async with asyncio.timeout(self._limits.wait_seconds):
                    await self._bodies.wait_for_memory(size)
            except TimeoutError:
                detail = "requests that are as large are being scored, and there was no room for this one"
                raise RefusedError(503, detail, headers={"Retry-After": "1"}) from None
        try:
            yield body
        finally:
            self._bodies.release(size)

    async def _read(self, request: Request, body: Body) -> None:
        encoding = request.headers.get("content-encoding", "identity")
        if encoding.strip().lower() != "identity":
            raise RefusedError(415, f"the request is encoded with {encoding[:40]!r}; send it as it is")
        limit = self._limits.bytes
        length = request.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length) > limit:
            raise _make_too_large_error(limit)
        try:
            async with body.deadline:
                async for piece in request.stream():
                    if len(body.data) + len(piece) > limit:
                        # The server reads and drops the rest, so that the client gets this response.
                        raise _make_too_large_error(limit)
                    self._bodies.add(body, piece)
                self._bodies.add(body, b"")
                body.is_complete = True
        except TimeoutError:
            if body.is_dropped:
                detail = "too much is being received at a time, and this request began first"
                raise RefusedError(503, detail, headers={"Retry-After": "1"}) from None
            raise RefusedError(408, f"the request did not come within {self._limits.read_seconds:g} seconds") from None
        except ClientDisconnect:
            # No client reads this response; it is only counted.
            raise RefusedError(400, "the client went away") from None

    def _parse_once(self, body: Body) -> list[Series] | Sources:
        """Return the input of the scoring function, and delete the data of the body."""
        data, body.data = body.data, bytearray()
        return self._parse(data)

    def _parse(self, body: bytearray) -> list[Series] | Sources:
        # An empty body means no series: a bare POST tests a scorer that needs none.
        names = self._scorer.sources
        if self._scorer.takes_sources:
            sources = parse_sources(body, self._limits, names) if body else {name: [] for name in names}
            self._metrics.series.observe(sum(map(len, sources.values())))
            return sources
        series = parse(body, self._limits) if body else []
        self._metrics.series.observe(len(series))
        return series

    def _run(self, body: Body) -> EncodedScores:
        series = self._parse_once(body)
        with self._map_errors():
            return encode(cast("ScoringResults", self._call(series)), self._limits.results)

    async def _run_async(self, series: list[Series] | Sources) -> EncodedScores:
        with self._map_errors():
            results = await cast("Awaitable[ScoringResults]", self._call(series))
            return encode(results, self._limits.results)

    def _call(self, series: list[Series] | Sources) -> object:
        # `_parse` returns the type that the function takes.
        return cast("Callable[[object], object]", self._scorer.function)(series)

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        """Map an error in the scoring function to a response; the log has the traceback."""
        try:
            yield
        except Unavailable as error:
            log.warning("scorer unavailable scorer=%s reason=%s", self._scorer.name, error)
            raise RefusedError(503, str(error), headers={"Retry-After": str(error.retry_after)}) from None
        except Exception:
            error_id = secrets.token_hex(4)
            log.exception("scoring failed scorer=%s error_id=%s", self._scorer.name, error_id)
            detail = f"the scoring function failed; the log of the scorer says why, under error_id={error_id}"
            raise RefusedError(500, detail, error_id=error_id) from None


def _format_counts(counts: dict[str, int]) -> str:
    return " ".join(f"{name}={count}" for name, count in sorted(counts.items()))


def _make_too_large_error(limit: int) -> RefusedError:
    return RefusedError(413, f"the request has more than {limit} bytes, the most that this scorer takes")
