"""The source type `Prometheus`: range queries of the HTTP API, answered by Prometheus, Thanos, Mimir, and others."""

from __future__ import annotations

import functools
import json

from dsf import http
from dsf.api.promql import split_queries
from dsf.api.summary import ScorerSummary
from dsf.errors import HttpError
from dsf.http.failures import EXCERPT, excerpt, place
from dsf.sources.base import HEAD, TAIL, Context, Payload
from dsf.sources.matrix import MatrixError, cut
from dsf.text import cleaned, masked

_split = functools.lru_cache(maxsize=1024)(split_queries)

#: Statuses with which Prometheus refuses a query: it cannot be parsed, or it cannot be executed.
_BAD_QUERY = frozenset({400, 422})


def fetch(summary: ScorerSummary, context: Context) -> Payload:
    """One request per query, all for the same time range; the series of all answers in the order of the queries."""
    queries = _split(summary.source_query)
    if not queries:
        raise HttpError("bad_query", "the scorer has no query; set spec.source.params.query")
    end = int(context.now)
    times = {"start": end - summary.source_range, "end": end, "step": summary.source_step}
    pieces: list[bytes | memoryview] = []
    series = received = 0
    for query in queries:
        params: dict[str, str | int] = {"query": query, **times}
        with context.asking(query, summary.source_endpoint, params) as question:
            body = http.get(
                summary.source_endpoint,
                params=params,
                access=context.access,
                deadline=context.deadline,
                max_bytes=context.max_bytes - received,
                explain=_explain,
            )
            received += len(body)
            try:
                matrix = cut(body, context.check)
            except MatrixError as error:
                # The error's text may quote the answer.
                text = _shown(str(error), context)
                raise HttpError("bad_answer", f"{place('GET', summary.source_endpoint)}: {text}") from None
            question.warnings = [_shown(text, context) for text in matrix.warnings]
            question.answered(len(body), (matrix.inside,), matrix.series)
        if matrix.series:
            pieces += [b"," if pieces else HEAD, matrix.inside]
            series += matrix.series
    return Payload((*(pieces or [HEAD]), TAIL), series, received)


def _shown(text: str, context: Context) -> str:
    return cleaned(masked(text, *context.access.secrets), EXCERPT)


def _explain(status: int, body: bytes) -> tuple[str, str] | None:
    """Prometheus' error text for a refused query."""
    if status not in _BAD_QUERY:
        return None
    try:
        text = json.loads(body)["error"]
    except (ValueError, LookupError, TypeError, RecursionError):
        text = None
    return "bad_query", text if isinstance(text, str) else excerpt(body)
