"""Cuts the array of series out of Prometheus' answer without parsing the series.

The answer of a range query is `{"status":"success","data":{"resultType":"matrix","result":[...]}}`, and what a scoring
API is sent is `{"data":[...]}` with the same array. Parsing and encoding it again would be nine tenths of an
agent's work, so only the rest of the answer is parsed: the array is replaced by a mark, the rest must be JSON with the
mark in the right place, and the array must end where its last series ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

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

#: Bytes that are parsed as JSON, per series and for everything else: parsed objects are fifty times as large.
_MAX_PARSED = 2 * 1024 * 1024

_decode = json.JSONDecoder().raw_decode


class MatrixError(ValueError):
    """The answer is not a complete matrix; the message says why."""


class Matrix(NamedTuple):
    """The items of the array of series."""

    #: Without the brackets; a view of the answer.
    inside: memoryview
    series: int
    #: What the server says against its own answer, which may lack data.
    warnings: tuple[str, ...]


def cut(body: bytes, check: Callable[[], None] = lambda: None) -> Matrix:
    """The array of series in the answer `body`. Raises MatrixError, and what `check` raises, called now and then."""
    match = _RESULT.search(body)
    if match is None and (null := _NULL.search(body)) is not None:
        return cut(b'%s"result":[]%s' % (body[: null.start()], body[null.end() :]), check)
    if match is None:
        raise MatrixError(_why_not(body))
    start = match.end()
    end, series = _compact(body, start) or _any_shape(body, start, check)
    warnings = _check_rest(body[: start - 1] + _MARK_JSON + body[end + 1 :], body)
    return Matrix(memoryview(body)[start:end], series, warnings)


def _compact(body: bytes, start: int) -> tuple[int, int] | None:
    """End of the array and number of series, for an answer as Prometheus writes it; None for another."""
    if body.startswith(b"]", start):
        return start, 0
    if not body.startswith(_FIRST, start):
        return None
    last = body.rfind(_FIRST)
    if len(body) - last > _MAX_PARSED:
        return None
    tail = body[last:]
    try:
        text = tail.decode()
        stop = _decode(text)[1]
    except (ValueError, RecursionError):
        return None
    if not tail.isascii():
        stop = len(text[:stop].encode())
    end = last + stop
    if not body.startswith(b"]", end):
        return None
    series = 1 + body.count(_AFTER, start, end)
    if body.count(b"{", start, end) != 2 * series:
        # A brace that opens no such series: there is something between or within series, or not all of them are in
        # this array.
        return None
    return end, series


def _any_shape(body: bytes, start: int, check: Callable[[], None]) -> tuple[int, int]:
    """The same for any JSON, by its brackets. Slower, with the same small memory."""
    depth = 1
    series = 0
    for number, token in enumerate(_TOKEN.finditer(body, start)):
        if number % (16 * 1024) == 0:
            check()
        char = token[0]
        if char in (b"{", b"["):
            series += depth == 1
            depth += 1
        elif char in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return token.start(), series
        elif char == b'"':
            break
    raise MatrixError("the answer ends within the series")


def _check_rest(rest: bytes, body: bytes) -> tuple[str, ...]:
    """The warnings in it."""
    if len(rest) > _MAX_PARSED:
        raise MatrixError(f"the answer has {len(rest)} bytes besides the series")
    try:
        document = json.loads(rest)
    except (ValueError, RecursionError):
        raise MatrixError("the answer is not JSON, or not all of it came") from None
    if not isinstance(document, dict):
        raise MatrixError("the answer is not a JSON object")
    data = document.get("data")
    if document.get("status") != "success" or not isinstance(data, dict) or data.get("result") != _MARK:
        raise MatrixError(_why_not(body))
    if data.get("resultType") != "matrix":
        raise MatrixError(_wrong_type(data.get("resultType")))
    listed = document.get("warnings")
    warnings = [text for text in listed if isinstance(text, str)] if isinstance(listed, list) else []
    # VictoriaMetrics' word for what Thanos and Prometheus write as a warning.
    if document.get("isPartial") is True:
        warnings.insert(0, "isPartial: servers behind the source did not answer, and their data is missing")
    return tuple(warnings[:3])


def _why_not(body: bytes) -> str:
    """Describe an answer without an array of series."""
    try:
        document: Any = json.loads(body[:_SMALL]) if len(body) <= _SMALL else None
    except (ValueError, RecursionError):
        return "the answer is not JSON, or not all of it came"
    if isinstance(document, dict):
        if isinstance(document.get("error"), str):
            return f"{document.get('errorType', 'error')}: {document['error']}"
        data = document.get("data")
        if isinstance(data, dict) and data.get("resultType", "matrix") != "matrix":
            return _wrong_type(data["resultType"])
    return 'the answer is not {"status":"success","data":{"resultType":"matrix","result":[...]}}'


def _wrong_type(kind: Any) -> str:
    return f"the answer is a {kind!r} and not a matrix; the path of the source must be that of range queries"


#: Bytes of an answer that are parsed to describe its error.
_SMALL = 64 * 1024
