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
from dsf.sources.history import History
from dsf.sources.memory import retention
from dsf.sources.registry import OTLP, source_of, type_of
from dsf.sources.scrape import scraped
from dsf.sources.selector import Selector, SelectorError, parse_selectors


def fetch(summary: ScorerSummary, context: Context) -> Payload:
    """The selected series for the time range, in the order of the queries."""
    if type_of(summary) == OTLP:
        return source_of(OTLP)(summary, context)
    selectors = selectors_of(summary.source_query, required=True)
    history = History(summary, context.memory, context.now)
    with context.asking(summary.source_query, summary.source_endpoint) as question:
        fetched = _pull(summary, context, selectors, history)
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


def _pull(summary: ScorerSummary, context: Context, selectors: Sequence[Selector], history: History) -> Payload:
    with history:
        body = http.get(
            summary.source_endpoint, access=context.access, deadline=context.deadline, max_bytes=context.max_bytes
        )
        try:
            samples = scraped(body, selectors, history.now, history.now - retention(summary), context.check)
        except ValueError as error:
            where = place("GET", summary.source_endpoint)
            raise HttpError("bad_answer", f"{where}: not Prometheus' text format: {error}") from None
        history.keep(samples)
    return _payload(history, selectors, context, len(body))


def _payload(history: History, selectors: Sequence[Selector], context: Context, received: int) -> Payload:
    """The selected series. Raises HttpError (too_large)."""
    pieces: list[bytes] = []
    series = 0
    for selector in selectors:
        left = context.max_bytes - sum(map(len, pieces))
        try:
            inside, count = history.window.matrix(selector.matches, history.grid, left, context.check)
        except OverflowError:
            raise HttpError(
                "too_large", f"the series are more than the {context.max_bytes} bytes allowed; select fewer"
            ) from None
        pieces += [b",", *inside] if pieces and inside else inside
        series += count
    return Payload((HEAD, *pieces, TAIL), series, received)
