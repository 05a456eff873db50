"""The source type `Prometheus`: queries of the HTTP API of Prometheus, Thanos, Mimir, and others.

An expression without range and step makes instant queries, whose response is a vector. All other scorers make range
queries. The response to a range query is `{"status":"success","data":{"resultType":"matrix","result":[...]}}`, and the
scoring request is `{"data":[...]}` with the same array. Parsing and encoding the array would be nine tenths of an
agent's work. `extract_series` therefore replaces the array by a placeholder, and parses the rest as JSON with the
placeholder in the right place. The array must end where its last series ends.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlencode

from dsf import boundedjson, http
from dsf.api.promql import find_shortest_rate_window, split_queries
from dsf.api.summary import ScorerSummary
from dsf.api.types import SourceMethod
from dsf.boundedjson import Bounds, serialize_parsing
from dsf.errors import HttpError, JsonBoundsError
from dsf.http.access import PLAIN, Access
from dsf.http.failures import EXCERPT_CHARACTERS, make_excerpt
from dsf.sources.base import HEAD, TAIL, FetchContext, Payload, compute_time_range
from dsf.sources.responsestorage import Body, Spool
from dsf.text import clean, describe_request, mask_secrets

_split = functools.lru_cache(maxsize=1024)(split_queries)

#: Seconds that contain two samples at Prometheus' default scrape interval of one minute.
_SHORT_WINDOW_SECONDS = 120.0
#: Result types of range queries and instant queries. `up[5m]` as an instant query returns a matrix.
_RANGE = ("matrix",)
_INSTANT = ("vector", "scalar", "matrix")
#: Statuses of Prometheus for a query that it cannot parse or execute.
_BAD_QUERY = frozenset({400, 422})
#: Statuses of servers and proxies for a URL that is too long. Some proxies send 400 instead, which counts as too long
#: for queries beyond the smallest of their limits (a request line of 4,094 bytes).
_TOO_LONG = frozenset({414, 431})


def fetch(summary: ScorerSummary, context: FetchContext) -> Payload:
    """Make one request per query for the same time, and return all series in the order of the queries."""
    queries = _split(summary.source_query)
    if not queries:
        raise HttpError("bad_query", "the scorer has no query; set spec.source.params.query")
    times, types = _make_time_parameters(summary, context.now)
    method = summary.source_method or SourceMethod.GET
    pieces: list[bytes | memoryview] = []
    received_bytes = 0
    counts: list[int] = []
    for query in queries:
        params: dict[str, str | int] = {"query": query, **times}
        with context.record_request(query, summary.source_endpoint, params, method=method) as record:
            spool = Spool(context.storage.folder)
            query_range(
                summary.source_endpoint,
                params,
                method,
                access=context.access,
                deadline=context.deadline,
                max_bytes=context.max_bytes - received_bytes,
                sink=spool.write,
            )
            body = spool.read_body()
            received_bytes += len(body)
            try:
                matrix = extract_series(body, context.check, types)
            except MatrixError as error:
                # The error's text may quote the response.
                text = _clean_excerpt(str(error), context)
                raise HttpError("bad_answer", f"{describe_request(method, summary.source_endpoint)}: {text}") from None
            warnings = [_clean_excerpt(text, context) for text in matrix.warnings]
            if (
                not matrix.series
                and (window := find_shortest_rate_window(query) or _SHORT_WINDOW_SECONDS) < _SHORT_WINDOW_SECONDS
            ):
                warnings.append(
                    f"no series, and the query has a window of {window:g} s: a rate needs two samples in it, which a "
                    "scrape interval of 60 s does not give; use [5m]"
                )
            record.warnings = warnings
            record.record_response(len(body), (matrix.items,), matrix.series)
        counts.append(matrix.series)
        if matrix.series:
            pieces += [b"," if pieces else HEAD, matrix.items]
    return Payload((*(pieces or [HEAD]), TAIL), sum(counts), received_bytes, tuple(counts))


def _make_time_parameters(summary: ScorerSummary, now: float) -> tuple[Mapping[str, str | int], Sequence[str]]:
    """Return the time parameters of the query, and the accepted result types."""
    if summary.expression is not None and not summary.source_range and not summary.source_step:
        # With milliseconds, as samples have them, because the newest sample may be of this second.
        return {"time": f"{now:.3f}".removesuffix(".000")}, _INSTANT
    start, end = compute_time_range(now, summary.source_range, summary.source_step)
    return {"start": start, "end": end, "step": summary.source_step}, _RANGE


def query_range(
    url: str,
    params: Mapping[str, str | int],
    method: str,
    *,
    deadline: float,
    max_bytes: int,
    access: Access = PLAIN,
    sink: http.Sink | None = None,
) -> bytes:
    """Return the response to a range query. See `http.get` for `sink` and errors.

    `params` are part of the URL, or with POST a form.
    """
    limits: dict[str, Any] = {"access": access, "deadline": deadline, "max_bytes": max_bytes, "sink": sink}

    def explain(status: int, body: bytes) -> tuple[str, str] | None:
        return _explain(status, body, method, len(str(params["query"])))

    if method == SourceMethod.GET:
        return http.get(url, params=params, explain=explain, **limits)
    return http.post(
        url,
        urlencode(params).encode(),
        **limits,
        content_type="application/x-www-form-urlencoded",
        explain=explain,
    )


def _clean_excerpt(text: str, context: FetchContext) -> str:
    """Return a text from a response without secrets, limited in length."""
    return clean(mask_secrets(text, *context.access.secrets), EXCERPT_CHARACTERS)


def _explain(status: int, body: bytes, method: str, length: int) -> tuple[str, str] | None:
    """Return (reason, message) of an error response, or None if the status says as much.

    The message is Prometheus' error text for a refused query, and a remedy for a URL that is too long or a method that
    the server does not accept. `length` is the number of characters of the query.
    """
    if status == HTTPStatus.METHOD_NOT_ALLOWED and method == SourceMethod.POST:
        return "http_error", "the server does not accept POST; remove `method: POST` from the source"
    try:
        text = json.loads(body)["error"]
    except (ValueError, LookupError, TypeError, RecursionError):
        text = None
    is_long = status in _TOO_LONG or (status in _BAD_QUERY and length > 4000 and text is None)
    if is_long and method == SourceMethod.GET:
        return "bad_query", (
            f"a query of {length} characters makes the URL longer than the server, or a proxy before it, accepts; set "
            "`method: POST` for the source, or write a shorter query"
        )
    if status not in _BAD_QUERY:
        return None
    return "bad_query", text if isinstance(text, str) else make_excerpt(body)


_PLACEHOLDER = "\x00series"
_PLACEHOLDER_JSON = json.dumps(_PLACEHOLDER).encode()

# Quotes within a JSON string are escaped, so that a match is always a key.
_RESULT_PATTERN = re.compile(rb'"result"\s*:\s*\[')
# Go encodes a nil slice as null.
_NULL_PATTERN = re.compile(rb'"result"\s*:\s*null')
# The beginning of the first series and of all others as Go encodes them. Each contains two opening braces.
_FIRST_SERIES = b'{"metric":{'
_NEXT_SERIES = b"}," + _FIRST_SERIES

_TOKEN_PATTERN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[][{}"]', re.DOTALL)

#: Bounds for the last series, and for everything besides the series. 11,000 points have 33,000 values.
_JSON_BOUNDS = Bounds(2 * 1024 * 1024, 100_000)
#: Bytes of a file that are searched at a time.
_WINDOW = 64 * 1024

_decode = json.JSONDecoder().raw_decode


class MatrixError(ValueError):
    """The response is not a complete matrix, for the reason in the message."""


class Matrix(NamedTuple):
    """The array of series in a response."""

    #: Items of the array, without its brackets: a view of the response.
    items: memoryview
    #: Number of series.
    series: int
    #: Warnings in the response, whose data may be incomplete.
    warnings: tuple[str, ...]


def extract_series(body: Body, check: Callable[[], None] = lambda: None, types: Sequence[str] = _RANGE) -> Matrix:
    """Return the array of series in the response `body`, whose result type must be one of `types`.

    Raises MatrixError, and the errors of `check`, which is called periodically.
    """
    match = _RESULT_PATTERN.search(body)
    if match is None and (null := _NULL_PATTERN.search(body)) is not None:
        _check_size(len(body))
        return extract_series(b'%s"result":[]%s' % (body[: null.start()], body[null.end() :]), check, types)
    if match is None:
        raise MatrixError(_describe_missing_series(body, types))
    start = match.end()
    end, series = _parse_compact_array(body, start) or _parse_any_array(body, start, check)
    _check_size(len(body) - (end - start))
    kind, warnings = _check_rest(body[: start - 1] + _PLACEHOLDER_JSON + body[end + 1 :], body, types)
    if kind == "scalar":
        return Matrix(memoryview(b'{"metric":{},"value":[%s]}' % body[start:end]), 1, warnings)
    return Matrix(memoryview(body)[start:end], series, warnings)


def _parse_compact_array(body: Body, start: int) -> tuple[int, int] | None:
    """Return (end of the array, number of series); None if the format is not exactly that of Prometheus."""
    if body[start : start + 1] == b"]":
        return start, 0
    if body[start : start + len(_FIRST_SERIES)] != _FIRST_SERIES:
        return None
    last_series_start = body.rfind(_FIRST_SERIES)
    if len(body) - last_series_start > _JSON_BOUNDS.max_bytes:
        return None
    tail = body[last_series_start:]
    try:
        boundedjson.check(tail, _JSON_BOUNDS)
        text = tail.decode()
        with serialize_parsing(len(tail)):
            stop = _decode(text)[1]
    except (ValueError, RecursionError):
        return None
    if not tail.isascii():
        stop = len(text[:stop].encode())
    end = last_series_start + stop
    if body[end : end + 1] != b"]":
        return None
    series = 1 + _count(body, _NEXT_SERIES, start, end)
    if _count(body, b"{", start, end) != 2 * series:
        # An extra brace means that there is something between or within series, or that some are not in this array.
        return None
    return end, series


def _count(body: Body, pattern: bytes, start: int, end: int) -> int:
    """Return the number of non-overlapping matches from `start` to `end`."""
    if isinstance(body, bytes):
        return body.count(pattern, start, end)
    return sum(
        body[window_start : min(window_start + _WINDOW + len(pattern) - 1, end)].count(pattern)
        for window_start in range(start, end, _WINDOW)
    )


def _parse_any_array(body: Body, start: int, check: Callable[[], None]) -> tuple[int, int]:
    """Return (end of the array, number of series) for any JSON, by matching brackets. Slow, but with little memory."""
    depth = 1
    series = 0
    for number, token in enumerate(_TOKEN_PATTERN.finditer(body, start)):
        if number % (16 * 1024) == 0:
            check()
        # Compare the first byte only, because the token may be a long string.
        position, char = token.start(), body[token.start() : token.start() + 1]
        if char in (b"{", b"["):
            series += depth == 1
            depth += 1
        elif char in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return position, series
        elif token.end() == position + 1:
            # A string without an end.
            break
    raise MatrixError("the response ends within the series")


def _check_size(size: int) -> None:
    if size > _JSON_BOUNDS.max_bytes:
        raise MatrixError(f"the response has {size} bytes besides the series")


def _check_rest(remaining_body: bytes, body: Body, types: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the result type and the warnings of the response, whose array was replaced by the placeholder."""
    try:
        with serialize_parsing(len(remaining_body)):
            document = boundedjson.parse(remaining_body, _JSON_BOUNDS)
    except JsonBoundsError as error:
        raise MatrixError(f"the response has too much besides the series: {error}") from None
    except ValueError:
        raise MatrixError("the response is not JSON, or is incomplete") from None
    if not isinstance(document, dict):
        raise MatrixError("the response is not a JSON object")
    data = document.get("data")
    if document.get("status") != "success" or not isinstance(data, dict) or data.get("result") != _PLACEHOLDER:
        raise MatrixError(_describe_missing_series(body, types))
    kind = data.get("resultType")
    if kind not in types:
        raise MatrixError(_make_type_error(kind, types))
    warning_list = document.get("warnings")
    warnings = [text for text in warning_list if isinstance(text, str)] if isinstance(warning_list, list) else []
    # VictoriaMetrics sets this field where Thanos and Prometheus add a warning.
    if document.get("isPartial") is True:
        warnings.insert(0, "isPartial: servers behind the source did not respond, and their data is missing")
    return str(kind), tuple(warnings[:3])


def _describe_missing_series(body: Body, types: Sequence[str]) -> str:
    """Describe a response without an array of series."""
    try:
        # Longer responses are not described.
        document: Any = boundedjson.parse(body[:], _JSON_BOUNDS) if len(body) <= 64 * 1024 else None
    except ValueError:
        return "the response is not JSON, or is incomplete"
    if isinstance(document, dict):
        if isinstance(document.get("error"), str):
            return f"{document.get('errorType', 'error')}: {document['error']}"
        data = document.get("data")
        if isinstance(data, dict) and data.get("resultType", types[0]) not in types:
            return _make_type_error(data["resultType"], types)
    return f'the response is not {{"status":"success","data":{{"resultType":"{types[0]}","result":[...]}}}}'


def _make_type_error(kind: Any, types: Sequence[str]) -> str:
    queries = "range queries" if types == _RANGE else "instant queries"
    return f"the response is a {kind!r} and not a {types[0]}; the path of the source must be that of {queries}"
