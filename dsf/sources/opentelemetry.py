"""The source type `OpenTelemetry`: scraped from a collector, or pushed to this agent.

The path decides: `/v1/metrics`, the standard path of OTLP/HTTP for metrics, is for metrics pushed to this agent, in
a plug-in of this project (`otlp`): no server is asked. Any other path is scraped with GET in each cycle, and gives one
sample per series and cycle.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsf import http
from dsf.api.summary import ScorerSummary
from dsf.errors import HttpError
from dsf.http.failures import place
from dsf.sources.base import HEAD, TAIL, Context, Payload
from dsf.sources.memory import grid_of, keep, retention, window_of
from dsf.sources.registry import OTLP, source_of, type_of
from dsf.sources.scrape import scraped
from dsf.sources.selector import Selector, SelectorError, parse_selectors
from dsf.sources.window import MAX_POINTS, Grid, Window, WindowFullError


def fetch(summary: ScorerSummary, context: Context) -> Payload:
    """The selected series for the time range, in the order of the queries."""
    if type_of(summary) == OTLP:
        return source_of(OTLP)(summary, context)
    selectors = selectors_of(summary.source_query, required=True)
    grid = checked_grid(summary, context.now)
    with context.asking(summary.source_query, summary.source_endpoint) as question:
        fetched = _pull(summary, context, selectors, grid)
        question.answered(fetched.received, fetched.inside, fetched.series)
    return fetched


def selectors_of(query: str, *, required: bool) -> Sequence[Selector]:
    """The queries of a scorer. Raises HttpError (bad_query)."""
    try:
        selectors = parse_selectors(query)
    except SelectorError as error:
        raise HttpError("bad_query", str(error)) from None
    if required and not selectors:
        raise HttpError("bad_query", "the scorer has no query; set spec.source.params.query to a metric's name")
    return selectors


def checked_grid(summary: ScorerSummary, now: float) -> Grid:
    """The scorer's range and step. Raises HttpError for too many points."""
    return checked(grid_of(summary, now))


def checked(grid: Grid) -> Grid:
    """The grid itself. Raises HttpError when it has too many points."""
    # The first one is not counted, as in Prometheus.
    if len(grid.times) - 1 > MAX_POINTS:
        raise HttpError(
            "bad_query", f"range {grid.length} s with step {grid.step} s is more than {MAX_POINTS} points per series"
        )
    return grid


def payload(window: Window, selectors: Sequence[Selector], grid: Grid, context: Context, received: int = 0) -> Payload:
    """The selected series of a window; without selectors, all. Raises HttpError (too_large)."""
    pieces: list[bytes] = []
    series = 0
    for selector in selectors or [Selector("")]:
        left = context.max_bytes - sum(map(len, pieces))
        try:
            inside, count = window.matrix(selector.matches, grid, left, context.check)
        except OverflowError:
            raise HttpError(
                "too_large", f"the series are more than the {context.max_bytes} bytes allowed; select fewer"
            ) from None
        pieces += [b",", *inside] if pieces and inside else inside
        series += count
    return Payload((HEAD, *pieces, TAIL), series, received)


def _pull(summary: ScorerSummary, context: Context, selectors: Sequence[Selector], grid: Grid) -> Payload:
    window = window_of(summary, context.memory)
    where = place("GET", summary.source_endpoint)
    now = float(grid.end)
    try:
        body = http.get(
            summary.source_endpoint, access=context.access, deadline=context.deadline, max_bytes=context.max_bytes
        )
        samples = scraped(body, selectors, now, now - retention(summary), context.check)
        window.forget(lambda _: now - retention(summary))
        keep(window, samples, now, context.memory, summary)
    except HttpError:
        # Unknown series must end: the next cycles show a gap.
        window.end_all(now)
        raise
    except WindowFullError as error:
        raise HttpError("too_large", f"{where}: {error}") from None
    except ValueError as error:
        window.end_all(now)
        raise HttpError("bad_answer", f"{where}: not Prometheus' text format: {error}") from None
    return payload(window, selectors, grid, context, len(body))
