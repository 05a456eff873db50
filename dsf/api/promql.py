"""Splits a text into PromQL queries, and finds the windows of rates in queries."""

from __future__ import annotations

import re

#: Matches strings, comments, ends of queries, and other text. An unterminated string extends to the end of the text, so
#: that Prometheus reports the error.
TOKEN = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|`[^`]*`?)|(?P<comment>\#[^\n]*)|(?P<end>;)|[^"'`#;]+""",
    re.DOTALL,
)


def split_queries(text: str) -> list[str]:
    """Return the queries in `text`, separated by `;`, in order, without comments and surrounding blanks.

    A `;` in a comment or in a string (with double, single or back quotes, by PromQL's rules) is no separator. Empty
    parts are omitted, so a trailing `;` has no effect.
    """
    queries: list[list[str]] = [[]]
    for token in TOKEN.finditer(text):
        if token["end"]:
            queries.append([])
        elif not token["comment"]:
            queries[-1].append(token[0])
    return [query for parts in queries if (query := "".join(parts).strip())]


_RATE_PATTERN = re.compile(r"\b(?:i?rate|increase|i?delta|deriv|resets|changes)\s*\(", re.IGNORECASE)
_WINDOW_PATTERN = re.compile(r"\[\s*((?:[0-9]{1,9}(?:ms|[smhdwy]))+)\s*[]:]")
_UNIT_PATTERN = re.compile(r"([0-9]+)(ms|[smhdwy])")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}


def find_shortest_rate_window(query: str) -> float | None:
    """Return the shortest window, in seconds, of a query with a rate or another function of several samples.

    Returns None if the query has no such function, or no window.
    """
    code = "".join(token[0] for token in TOKEN.finditer(query) if not (token["string"] or token["comment"]))
    if not _RATE_PATTERN.search(code):
        return None
    windows = (_UNIT_PATTERN.findall(window) for window in _WINDOW_PATTERN.findall(code))
    return min((sum(int(number) * _SECONDS[unit] for number, unit in window) for window in windows), default=None)
