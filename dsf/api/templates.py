"""`${cluster}`, `${label:KEY}` and `${claim:KEY}` in what scorers ask: filled in by the hub, for each cluster.

A value is escaped for the place where it stands. Labels and claims of a cluster are set by others than the author of a
query: a value must stay a value there, and never become a part of the query or another server. `$${` is `${` itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import quote

from dsf.api.plain import is_header_value
from dsf.api.promql import TOKEN
from dsf.api.resolvereason import Reason
from dsf.api.scoringauthentication import ClusterFacts
from dsf.errors import ResolutionError

_TEMPLATE: Final = re.compile(r"\$(?P<literal>\$)?\{(?P<name>[^{}]*)\}")
#: What may stand in PromQL outside of a string: a name, a number or a duration. No blank, no operator.
_WORD: Final = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_:.]*")
_HOST_PART: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
_KNOWN: Final = "${cluster}, ${label:KEY} and ${claim:KEY}"

#: Makes of a value what may stand in its place; raises ValueError (why not).
_Escape = Callable[[str], str]


class Renderer:
    """Fills in the values of one cluster. All methods raise ResolutionError that names cluster, field and key."""

    def __init__(self, cluster: ClusterFacts) -> None:
        self._cluster = cluster

    def query(self, text: str, field: str) -> str:
        """PromQL, or any text with strings like its."""
        if "${" not in text:
            return text
        pieces: list[str] = []
        for piece, is_string in _strings(text):
            if not is_string:
                escape: _Escape = _word
            elif piece[0] == "`":
                escape = _in_backquotes
            else:
                escape = _in_quotes(piece[0], is_regex=bool(re.search(r"[=!]~\s*$", "".join(pieces))))
            pieces.append(self._fill(piece, field, escape))
        return "".join(pieces)

    def host(self, text: str, field: str) -> str:
        """A URL without its query."""
        if "${" not in text:
            return text
        filled, at, position = "", text.find("://") + 3, 0
        for found in _TEMPLATE.finditer(text):
            filled += text[position : found.start()]
            in_path = "/" in filled[at:]
            filled += self._value(found, field, _path if in_path else _host)
            position = found.end()
        return filled + text[position:]

    def path(self, text: str, field: str) -> str:
        """A path, with a query or not."""
        return self._fill(text, field, _path)

    def value(self, text: str, field: str) -> str:
        """The value of a header or of a parameter, which is escaped when it is sent."""
        return self._fill(text, field, _plain)

    def _fill(self, text: str, field: str, escape: _Escape) -> str:
        return _TEMPLATE.sub(lambda found: self._value(found, field, escape), text) if "${" in text else text

    def _value(self, found: re.Match[str], field: str, escape: _Escape) -> str:
        if found["literal"]:
            return found[0][1:]
        kind, _, key = found["name"].partition(":")
        name = self._cluster.name
        if found["name"] == "cluster":
            value: str | None = name
        elif kind == "label" and key:
            value = self._cluster.labels.get(key)
        elif kind == "claim" and key:
            value = self._cluster.claims.get(key)
        else:
            raise ResolutionError(Reason.UnknownTemplate, f"{field}: {found[0]} is not one of {_KNOWN}")
        if value is None:
            what = "label" if kind == "label" else "ClusterClaim"
            raise ResolutionError(
                Reason.MissingClusterValue, f"{field}: ManagedCluster {name!r} has no {what} {key!r} for {found[0]}"
            )
        try:
            return escape(value)
        except ValueError as error:
            raise ResolutionError(
                Reason.UnsafeClusterValue, f"{field}: of ManagedCluster {name!r}, {found[0]} {error}"
            ) from None


def has_template(text: str) -> bool:
    """Whether something is to be filled in, or to be taken for itself."""
    return _TEMPLATE.search(text) is not None


def _strings(text: str) -> Iterator[tuple[str, bool]]:
    """The text in pieces, and of each whether it is a string with its quotes."""
    position = 0
    for found in TOKEN.finditer(text):
        if found["string"] is None:
            continue
        yield text[position : found.start()], False
        yield found[0], True
        position = found.end()
    yield text[position:], False


def _word(value: str) -> str:
    if _WORD.fullmatch(value) is None:
        raise ValueError("is no single word, and stands outside of a string: put the template into quotes")
    return value


def _in_quotes(quote_mark: str, *, is_regex: bool) -> _Escape:
    def escape(value: str) -> str:
        text = re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", value) if is_regex else value
        text = text.replace("\\", "\\\\").replace(quote_mark, f"\\{quote_mark}")
        if not text.isprintable():
            raise ValueError("has a control character")
        return text

    return escape


def _in_backquotes(value: str) -> str:
    if "`" in value or not value.isprintable():
        raise ValueError("has a back quote or a control character, which nothing escapes between back quotes")
    return value


def _host(value: str) -> str:
    if _HOST_PART.fullmatch(value) is None:
        raise ValueError("cannot be a part of a host's name")
    return value


def _path(value: str) -> str:
    if value in (".", "..", "") or not value.isprintable():
        raise ValueError("cannot be a part of a path")
    return quote(value, safe="")


def _plain(value: str) -> str:
    if not is_header_value(value):
        raise ValueError("is not printable ASCII on one line")
    return value
