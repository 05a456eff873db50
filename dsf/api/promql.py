"""Splits a text into PromQL queries."""

from __future__ import annotations

import re

#: Strings, comments, ends of queries, and text in between. An unterminated string takes the rest, and Prometheus
#: reports the mistake.
TOKEN = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|`[^`]*`?)|(?P<comment>\#[^\n]*)|(?P<end>;)|[^"'`#;]+""",
    re.DOTALL,
)


def split_queries(text: str) -> list[str]:
    """The queries in `text`, separated by `;`, in order, without comments and surrounding blanks.

    A `;` in a string (double, single or back quotes, by PromQL's rules) or in a comment does not separate. Empty parts
    are omitted, so a trailing `;` has no effect.
    """
    queries: list[list[str]] = [[]]
    for token in TOKEN.finditer(text):
        if token["end"]:
            queries.append([])
        elif not token["comment"]:
            queries[-1].append(token[0])
    return [query for parts in queries if (query := "".join(parts).strip())]
