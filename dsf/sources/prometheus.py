"""The source type `Prometheus`: range queries of the HTTP API, answered by Prometheus, Thanos, Mimir, and others."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import urlencode

from dsf import http
from dsf.api.promql import split_queries
from dsf.api.summary import ScorerSummary
from dsf.api.types import SourceMethod
from dsf.errors import HttpError
from dsf.http.access import PLAIN, Access
from dsf.http.failures import EXCERPT, excerpt, place
from dsf.sources.base import HEAD, TAIL, Context, Payload
from dsf.sources.matrix import MatrixError, cut
from dsf.text import cleaned, masked

_split = functools.lru_cache(maxsize=1024)(split_queries)

#: Statuses with which Prometheus refuses a query: it cannot be parsed, or it cannot be executed.
_BAD_QUERY = frozenset({400, 422})
#: Statuses with which servers and proxies refuse a long URL. Some proxies say 400 instead, in their own words; this is
#: said of queries that have more characters than the shortest of their limits (a request line of 4,094 bytes).
_TOO_LONG = frozenset({414, 431})


def fetch(summary: ScorerSummary, context: Context) -> Payload:
    """One request per query, all for the same time range; the series of all answers in the order of the queries."""
    queries = _split(summary.source_query)
    if not queries:
        raise HttpError("bad_query", "the scorer has no query; set spec.source.params.query")
    end = int(context.now)
    times = {"start": end - summary.source_range, "end": end, "step": summary.source_step}
    method = summary.source_method or SourceMethod.GET
    pieces: list[bytes | memoryview] = []
    series = received = 0
    for query in queries:
        params: dict[str, str | int] = {"query": query, **times}
        with context.asking(query, summary.source_endpoint, params, method=method) as question:
            body = range_query(
                summary.source_endpoint,
                params,
                method,
                access=context.access,
                deadline=context.deadline,
                max_bytes=context.max_bytes - received,
            )
            received += len(body)
            try:
                matrix = cut(body, context.check)
            except MatrixError as error:
                # The error's text may quote the answer.
                text = _shown(str(error), context)
                raise HttpError("bad_answer", f"{place(method, summary.source_endpoint)}: {text}") from None
            question.warnings = [_shown(text, context) for text in matrix.warnings]
            question.answered(len(body), (matrix.inside,), matrix.series)
        if matrix.series:
            pieces += [b"," if pieces else HEAD, matrix.inside]
            series += matrix.series
    return Payload((*(pieces or [HEAD]), TAIL), series, received)


def range_query(
    url: str, params: Mapping[str, str | int], method: str, *, deadline: float, max_bytes: int, access: Access = PLAIN
) -> bytes:
    """The answer to a range query: `params` in the URL, or with POST as a form. Errors as for `http.get`."""

    def explain(status: int, body: bytes) -> tuple[str, str] | None:
        return _explain(status, body, method, len(str(params["query"])))

    if method == SourceMethod.GET:
        return http.get(url, params=params, access=access, deadline=deadline, max_bytes=max_bytes, explain=explain)
    return http.post(
        url,
        urlencode(params).encode(),
        access=access,
        deadline=deadline,
        max_bytes=max_bytes,
        content_type="application/x-www-form-urlencoded",
        explain=explain,
    )


def _shown(text: str, context: Context) -> str:
    return cleaned(masked(text, *context.access.secrets), EXCERPT)


def _explain(status: int, body: bytes, method: str, length: int) -> tuple[str, str] | None:
    """Prometheus' error text for a refused query; the remedy where it was refused for the length of its URL, or for its
    method. `length` is that of the query."""
    if status == HTTPStatus.METHOD_NOT_ALLOWED and method == SourceMethod.POST:
        return "http_error", "the server takes no POST; remove `method: POST` from the source"
    try:
        text = json.loads(body)["error"]
    except (ValueError, LookupError, TypeError, RecursionError):
        text = None
    is_long = status in _TOO_LONG or (status in _BAD_QUERY and length > 4000 and text is None)
    if is_long and method == SourceMethod.GET:
        return "bad_query", (
            f"a query of {length} characters makes the URL longer than the server, or a proxy before it, takes; set "
            "`method: POST` for the source, or write a shorter query"
        )
    if status not in _BAD_QUERY:
        return None
    return "bad_query", text if isinstance(text, str) else excerpt(body)
