"""The source type `Prometheus`: queries of the HTTP API, answered by Prometheus, Thanos, Mimir, and others.

An expression without range and step makes instant queries, whose answer is a vector, all others range queries.
The answer of a range query is `{"status":"success","data":{"resultType":"matrix","result":[...]}}`, and what a scoring
API is sent is `{"data":[...]}` with the same array. Parsing and encoding it again would be nine tenths of an agent's
work, so `cut` parses only the rest of the answer: the array is replaced by a mark, the rest must be JSON with the mark
in the right place, and the array must end where its last series ends.
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
from dsf.api.promql import shortest_rate_window, split_queries
from dsf.api.summary import ScorerSummary
from dsf.api.types import SourceMethod
from dsf.boundedjson import Bounds, turn
from dsf.errors import HttpError, JsonBoundsError
from dsf.http.access import PLAIN, Access
from dsf.http.failures import EXCERPT, excerpt
from dsf.sources.base import HEAD, TAIL, FetchContext, Payload, time_range
from dsf.sources.room import Body, Spool
from dsf.text import cleaned, masked, place

_split = functools.lru_cache(maxsize=1024)(split_queries)

#: Seconds with two samples at the default scrape interval of Prometheus, one minute.
_SHORT_WINDOW = 120.0
#: Types of the answers to range queries and instant queries. `up[5m]` gives an instant query a matrix.
_RANGE = ("matrix",)
_INSTANT = ("vector", "scalar", "matrix")
#: Statuses with which Prometheus refuses a query: it cannot be parsed, or it cannot be executed.
_BAD_QUERY = frozenset({400, 422})
#: Statuses with which servers and proxies refuse a long URL. Some proxies say 400 instead, in their own words; this is
#: said of queries that have more characters than the shortest of their limits (a request line of 4,094 bytes).
_TOO_LONG = frozenset({414, 431})


def fetch(summary: ScorerSummary, context: FetchContext) -> Payload:
    """Make a request per query, all for the same time, and return all series in the order of the queries."""
    queries = _split(summary.source_query)
    if not queries:
        raise HttpError("bad_query", "the scorer has no query; set spec.source.params.query")
    times, types = _times(summary, context.now)
    method = summary.source_method or SourceMethod.GET
    pieces: list[bytes | memoryview] = []
    received = 0
    counts: list[int] = []
    for query in queries:
        params: dict[str, str | int] = {"query": query, **times}
        with context.asking(query, summary.source_endpoint, params, method=method) as question:
            spool = Spool(context.room.folder)
            range_query(
                summary.source_endpoint,
                params,
                method,
                access=context.access,
                deadline=context.deadline,
                max_bytes=context.max_bytes - received,
                sink=spool.write,
            )
            body = spool.body()
            received += len(body)
            try:
                matrix = cut(body, context.check, types)
            except MatrixError as error:
                # The error's text may quote the answer.
                text = _shown(str(error), context)
                raise HttpError("bad_answer", f"{place(method, summary.source_endpoint)}: {text}") from None
            warnings = [_shown(text, context) for text in matrix.warnings]
            if not matrix.series and (window := shortest_rate_window(query) or _SHORT_WINDOW) < _SHORT_WINDOW:
                warnings.append(
                    f"no series, and the query has a window of {window:g} s: a rate needs two samples in it, which a "
                    "scrape interval of 60 s does not give; use [5m]"
                )
            question.warnings = warnings
            question.answered(len(body), (matrix.inside,), matrix.series)
        counts.append(matrix.series)
        if matrix.series:
            pieces += [b"," if pieces else HEAD, matrix.inside]
    return Payload((*(pieces or [HEAD]), TAIL), sum(counts), received, tuple(counts))


def _times(summary: ScorerSummary, now: float) -> tuple[dict[str, int], Sequence[str]]:
    """Return the parameters that say which time is queried, and the accepted types of the answer."""
    if summary.expression is not None and not summary.source_range and not summary.source_step:
        return {"time": int(now)}, _INSTANT
    start, end = time_range(now, summary.source_range, summary.source_step)
    return {"start": start, "end": end, "step": summary.source_step}, _RANGE


def range_query(
    url: str,
    params: Mapping[str, str | int],
    method: str,
    *,
    deadline: float,
    max_bytes: int,
    access: Access = PLAIN,
    sink: http.Sink | None = None,
) -> bytes:
    """The answer to a range query: `params` in the URL, or with POST as a form. `sink` and errors as for `http.get`."""
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


def _shown(text: str, context: FetchContext) -> str:
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


_MARK = "\x00series"
_MARK_JSON = json.dumps(_MARK).encode()

# Quotes within a JSON string are escaped, so this is a key wherever it stands.
_RESULT = re.compile(rb'"result"\s*:\s*\[')
# How Go writes an array that was never made.
_NULL = re.compile(rb'"result"\s*:\s*null')
# How Go writes a series, the first and every other one, each with the two braces that open in it.
_FIRST = b'{"metric":{'
_AFTER = b"}," + _FIRST

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[][{}"]', re.DOTALL)

#: The last series, and everything besides the series, which are parsed: 11,000 points have 33,000 values.
_PARSED = Bounds(2 * 1024 * 1024, 100_000)
#: Bytes of a file in which matches are counted at a time.
_WINDOW = 64 * 1024

_decode = json.JSONDecoder().raw_decode


class MatrixError(ValueError):
    """The answer is not a complete matrix; the message says why."""


class Matrix(NamedTuple):
    """The items of the array of series."""

    #: Without the brackets; a view of the answer.
    inside: memoryview
    series: int
    #: Warnings of the server about its own answer, which may lack data.
    warnings: tuple[str, ...]


def cut(body: Body, check: Callable[[], None] = lambda: None, types: Sequence[str] = _RANGE) -> Matrix:
    """The array of series in the answer `body`, which has one of these types.

    Raises MatrixError, and what `check` raises, called now and then.
    """
    match = _RESULT.search(body)
    if match is None and (null := _NULL.search(body)) is not None:
        _check_size(len(body))
        return cut(b'%s"result":[]%s' % (body[: null.start()], body[null.end() :]), check, types)
    if match is None:
        raise MatrixError(_why_not(body, types))
    start = match.end()
    end, series = _compact(body, start) or _any_shape(body, start, check)
    _check_size(len(body) - (end - start))
    kind, warnings = _check_rest(body[: start - 1] + _MARK_JSON + body[end + 1 :], body, types)
    if kind == "scalar":
        return Matrix(memoryview(b'{"metric":{},"value":[%s]}' % body[start:end]), 1, warnings)
    return Matrix(memoryview(body)[start:end], series, warnings)


def _compact(body: Body, start: int) -> tuple[int, int] | None:
    """End of the array and number of series, for an answer as Prometheus writes it; None for another."""
    if body[start : start + 1] == b"]":
        return start, 0
    if body[start : start + len(_FIRST)] != _FIRST:
        return None
    last = body.rfind(_FIRST)
    if len(body) - last > _PARSED.max_bytes:
        return None
    tail = body[last:]
    try:
        boundedjson.check(tail, _PARSED)
        text = tail.decode()
        with turn(len(tail)):
            stop = _decode(text)[1]
    except (ValueError, RecursionError):
        return None
    if not tail.isascii():
        stop = len(text[:stop].encode())
    end = last + stop
    if body[end : end + 1] != b"]":
        return None
    series = 1 + _count(body, _AFTER, start, end)
    if _count(body, b"{", start, end) != 2 * series:
        # A brace that opens no such series: there is something between or within series, or not all of them are in
        # this array.
        return None
    return end, series


def _count(body: Body, pattern: bytes, start: int, end: int) -> int:
    """How often the pattern is there from `start` to `end`; no two of its places overlap."""
    if isinstance(body, bytes):
        return body.count(pattern, start, end)
    return sum(
        body[first : min(first + _WINDOW + len(pattern) - 1, end)].count(pattern)
        for first in range(start, end, _WINDOW)
    )


def _any_shape(body: Body, start: int, check: Callable[[], None]) -> tuple[int, int]:
    """The same for any JSON, by its brackets. Slower, with the same small memory."""
    depth = 1
    series = 0
    for number, token in enumerate(_TOKEN.finditer(body, start)):
        if number % (16 * 1024) == 0:
            check()
        # The first byte is enough: the whole token may be a long text.
        place, char = token.start(), body[token.start() : token.start() + 1]
        if char in (b"{", b"["):
            series += depth == 1
            depth += 1
        elif char in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return place, series
        elif token.end() == place + 1:
            # A text without an end.
            break
    raise MatrixError("the answer ends within the series")


def _check_size(size: int) -> None:
    if size > _PARSED.max_bytes:
        raise MatrixError(f"the answer has {size} bytes besides the series")


def _check_rest(rest: bytes, body: Body, types: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The type of the answer, and the warnings in it."""
    try:
        with turn(len(rest)):
            document = boundedjson.loads(rest, _PARSED)
    except JsonBoundsError as error:
        raise MatrixError(f"the answer has too much besides the series: {error}") from None
    except ValueError:
        raise MatrixError("the answer is not JSON, or not all of it came") from None
    if not isinstance(document, dict):
        raise MatrixError("the answer is not a JSON object")
    data = document.get("data")
    if document.get("status") != "success" or not isinstance(data, dict) or data.get("result") != _MARK:
        raise MatrixError(_why_not(body, types))
    kind = data.get("resultType")
    if kind not in types:
        raise MatrixError(_wrong_type(kind, types))
    warning_list = document.get("warnings")
    warnings = [text for text in warning_list if isinstance(text, str)] if isinstance(warning_list, list) else []
    # VictoriaMetrics' word for what Thanos and Prometheus write as a warning.
    if document.get("isPartial") is True:
        warnings.insert(0, "isPartial: servers behind the source did not answer, and their data is missing")
    return str(kind), tuple(warnings[:3])


def _why_not(body: Body, types: Sequence[str]) -> str:
    """Describe an answer without an array of series."""
    try:
        # A longer one is not described.
        document: Any = boundedjson.loads(body[:], _PARSED) if len(body) <= 64 * 1024 else None
    except ValueError:
        return "the answer is not JSON, or not all of it came"
    if isinstance(document, dict):
        if isinstance(document.get("error"), str):
            return f"{document.get('errorType', 'error')}: {document['error']}"
        data = document.get("data")
        if isinstance(data, dict) and data.get("resultType", types[0]) not in types:
            return _wrong_type(data["resultType"], types)
    return f'the answer is not {{"status":"success","data":{{"resultType":"{types[0]}","result":[...]}}}}'


def _wrong_type(kind: Any, types: Sequence[str]) -> str:
    queries = "range queries" if types == _RANGE else "instant queries"
    return f"the answer is a {kind!r} and not a {types[0]}; the path of the source must be that of {queries}"
