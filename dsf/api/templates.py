"""Templates `${cluster}`, `${label:KEY}` and `${claim:KEY}`, which the hub expands for each cluster.

Values are escaped for their context. Labels and claims of a cluster do not have the same author as a query, so a value
must not become part of the query's code or change the server. `$${` is a literal `${`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from dsf.api.fieldtypes import check_header_value
from dsf.api.promql import TOKEN
from dsf.api.scoringauthentication import ClusterFacts, Override, ScoringAuthenticationSpec
from dsf.api.types import ResolveReason
from dsf.errors import ResolutionError

_TEMPLATE_PATTERN: Final = re.compile(r"\$(?P<literal>\$)?\{(?P<name>[^{}]*)\}")
#: Pattern of a template in PromQL. It does not match `${1}`, which is a capture group in label_replace.
_QUERY_TEMPLATE_PATTERN: Final = re.compile(r"\$(?:(?P<literal>\$)|(?!\{[0-9]+\}))\{(?P<name>[^{}]*)\}")
#: Values allowed in PromQL outside of a string: a name, a number or a duration, without blanks and operators.
_PROMQL_WORD_PATTERN: Final = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_:.]*")
_HOST_PART_PATTERN: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
_KNOWN_TEMPLATES: Final = "${cluster}, ${label:KEY} and ${claim:KEY}"

#: Function that escapes a value for its context, or raises ValueError with the reason why it cannot.
_Escape = Callable[[str], str]


class Renderer:
    """Expands templates for a cluster, and looks up the override that applies to it.

    Methods that expand templates raise ResolutionError naming cluster, field and key.
    """

    def __init__(self, cluster: ClusterFacts | None) -> None:
        """Render for `cluster`. If it is None, the placeholder `x` replaces each template, and no override applies."""
        self._cluster = cluster
        #: True if the results so far may differ for another cluster.
        self.depends_on_cluster = False

    def find_override(self, spec: ScoringAuthenticationSpec) -> Override | None:
        """Return the override that applies to the cluster; None if none applies, or without a cluster.

        Sets `depends_on_cluster` if `spec` has overrides.
        """
        self.depends_on_cluster = self.depends_on_cluster or bool(spec.overrides)
        return spec.find_override(self._cluster) if self._cluster is not None else None

    def get_labels(self) -> dict[str, str]:
        """Return the cluster's labels, empty without a cluster. Sets `depends_on_cluster`."""
        self.depends_on_cluster = True
        return dict(self._cluster.labels) if self._cluster is not None else {}

    def expands_to_placeholder(self, text: str) -> bool:
        """Return True if expanding `text` yields placeholders, because there is no cluster."""
        return self._cluster is None and "${" in text

    def expand_query(self, text: str, field: str) -> str:
        """Expand templates in PromQL, or in another text with the same string syntax."""
        if "${" not in text:
            return text
        expanded_pieces: list[str] = []
        # The last two characters of the code so far, which tell whether a string is a regular expression. Keeping all
        # code would make the time quadratic.
        code_end = ""
        for token in TOKEN.finditer(text):
            piece = token[0]
            if token["string"]:
                is_regex = code_end in ("=~", "!~")
                _check_backslashes(piece, field, is_regex=is_regex)
                expanded_pieces.append(
                    self._expand(
                        piece, field, _make_string_escape(piece[0], is_regex=is_regex), _QUERY_TEMPLATE_PATTERN
                    )
                )
            else:
                expanded_pieces.append(self._expand(piece, field, _check_word, _QUERY_TEMPLATE_PATTERN))
            if not token["comment"]:
                code_end = (code_end + piece.rstrip())[-2:]
        return "".join(expanded_pieces)

    def expand_host(self, text: str, field: str) -> str:
        """Expand templates in a URL without a query."""
        # Replace templates by blanks, because their keys may have slashes, which do not begin the path.
        text_without_templates = _TEMPLATE_PATTERN.sub(lambda match: " " * len(match[0]), text)
        path_start = text_without_templates.find("/", text.find("://") + 3)

        def fill(match: re.Match[str]) -> str:
            is_path = 0 <= path_start < match.start()
            return self._expand_match(match, field, _quote_path if is_path else _check_host_part)

        return _TEMPLATE_PATTERN.sub(fill, text)

    def expand_path(self, text: str, field: str) -> str:
        """Expand templates in a path, optionally with a query."""
        return self._expand(text, field, _quote_path)

    def expand_value(self, text: str, field: str) -> str:
        """Expand templates in the value of a header or parameter, which is escaped later for the request."""
        return self._expand(text, field, check_header_value)

    def _expand(self, text: str, field: str, escape: _Escape, pattern: re.Pattern[str] = _TEMPLATE_PATTERN) -> str:
        """Replace all matches of `pattern`, with values escaped by `escape`."""
        return pattern.sub(lambda match: self._expand_match(match, field, escape), text) if "${" in text else text

    def _expand_match(self, match: re.Match[str], field: str, escape: _Escape) -> str:
        """Return the text that replaces one matched template: its escaped value, or a literal `${...}`."""
        if match["literal"]:
            return match[0][1:]
        self.depends_on_cluster = True
        kind, _, key = match["name"].partition(":")
        if match["name"] != "cluster" and not (kind in ("label", "claim") and key):
            raise ResolutionError(
                ResolveReason.UnknownTemplate, f"{field}: {match[0]} is not one of {_KNOWN_TEMPLATES}"
            )
        if self._cluster is None:
            return "x"
        cluster = self._cluster
        value = cluster.name if not key else (cluster.labels if kind == "label" else cluster.claims).get(key)
        if value is None:
            property_name = "label" if kind == "label" else "ClusterClaim"
            raise ResolutionError(
                ResolveReason.MissingClusterValue,
                f"{field}: ManagedCluster {cluster.name!r} has no {property_name} {key!r} for {match[0]}",
            )
        try:
            return escape(value)
        except ValueError as error:
            raise ResolutionError(
                ResolveReason.UnsafeClusterValue, f"{field}: {match[0]} of ManagedCluster {cluster.name!r} {error}"
            ) from None


def _check_backslashes(piece: str, field: str, *, is_regex: bool) -> None:
    """Reject a template after a backslash that would escape the first character of the value."""
    # Quotes and regular expressions each read two backslashes as one; back quotes keep all. The last backslash before a
    # template escapes nothing if the number of backslashes is a multiple of 2 for each of them.
    backslash_multiple = 2 ** ((piece[0] != "`") + is_regex)
    for match in _QUERY_TEMPLATE_PATTERN.finditer(piece):
        if not match["literal"] and _count_backslashes(piece, match.start()) % backslash_multiple:
            raise ResolutionError(
                ResolveReason.UnknownTemplate,
                f"{field}: {match[0]} follows a backslash, which would change the value",
            )


def _count_backslashes(text: str, end: int) -> int:
    """Return the number of backslashes immediately before the position `end`."""
    start = end
    while start and text[start - 1] == "\\":
        start -= 1
    return end - start


def _check_word(value: str) -> str:
    """Return a value for PromQL outside of a string. Raises ValueError unless it is a single word."""
    if _PROMQL_WORD_PATTERN.fullmatch(value) is None:
        raise ValueError("is not a single word, so the template must be inside quotes")
    return value


def _make_string_escape(quote_char: str, *, is_regex: bool) -> _Escape:
    """Return a function that escapes a value for a string in `quote_char`, so that a regular expression matches it.

    The function raises ValueError for a value that cannot be escaped.
    """

    def escape(value: str) -> str:
        text = re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", value) if is_regex else value
        if quote_char == "`":
            if quote_char in value or not value.isprintable():
                raise ValueError("has a back quote or a control character, which cannot be escaped inside back quotes")
            return text
        if not value.isprintable():
            raise ValueError("has a control character")
        return text.replace("\\", "\\\\").replace(quote_char, f"\\{quote_char}")

    return escape


def _check_host_part(value: str) -> str:
    """Return a value for a URL's host. Raises ValueError if it has other characters than a host name."""
    if _HOST_PART_PATTERN.fullmatch(value) is None:
        raise ValueError("cannot be part of a host name")
    return value


def _quote_path(value: str) -> str:
    """Return a value percent-encoded for a path. Raises ValueError for `.`, `..`, an empty or an unprintable value."""
    if value in (".", "..", "") or not value.isprintable():
        raise ValueError("cannot be part of a path")
    return quote(value, safe="")
