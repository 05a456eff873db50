"""Series selectors for sources without a query language, such as `name{label="value"}`.

A selector is PromQL's instant selector, without functions and ranges. `=`, `!=`, `=~` and `!~` mean the same as in
PromQL, and regular expressions match the whole value. Dots in names, as in OpenTelemetry, stand for the underscores of
Prometheus' format.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dsf.api.promql import split_queries
from dsf.errors import HttpError

_NAME_PATTERN = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:.]*")
_MATCHER_PATTERN = re.compile(
    r"""\s*(?P<label>[a-zA-Z_][a-zA-Z0-9_.]*)\s*(?P<sign>=~|!~|!=|=)\s*"""
    r"""(?P<value>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)\s*""",
    re.DOTALL,
)
#: Escapes of a quoted value: a code in octal or hex, or one character.
_ESCAPE_PATTERN = re.compile(r"\\(?:([0-7]{3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = dict(zip("abfnrtv\\\"'", "\a\b\f\n\r\t\v\\\"'", strict=True))


#: Label of the framework -> OpenTelemetry's attribute of the same meaning, in Prometheus' format.
SHORT_NAMES: Final = {
    "node": "k8s_node_name",
    "namespace": "k8s_namespace_name",
    "pod": "k8s_pod_name",
    "container": "k8s_container_name",
}


class SelectorError(ValueError):
    """An invalid selector; the message says what is wrong and what is supported."""


@dataclass(frozen=True, slots=True)
class Matcher:
    """A condition on a label. An absent label is empty."""

    label: str
    value: str
    negated: bool = False
    #: The compiled pattern; None: the values are compared as text.
    pattern: Any = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True if a series with these labels matches."""
        value = labels.get(self.label, "")
        if self.pattern is None:
            return (value == self.value) is not self.negated
        # Bytes are RE2's own type. With text, RE2 would also convert offsets, which is slower.
        return (self.pattern.fullmatch(value.encode(errors="replace")) is not None) is not self.negated


@dataclass(frozen=True, slots=True)
class Selector:
    """A query that selects series by name and labels."""

    #: Metric name in Prometheus' format; empty for all metrics.
    name: str
    matchers: tuple[Matcher, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True if the selector selects a series with these labels, which include `__name__`."""
        if self.name and labels.get("__name__") != self.name:
            return False
        return all(matcher.matches(labels) for matcher in self.matchers)


def parse_query(query: str, *, required: bool) -> tuple[Selector, ...]:
    """Return the selectors of a scorer's query. Raises HttpError (bad_query)."""
    try:
        selectors = parse_selectors(query)
    except SelectorError as error:
        raise HttpError("bad_query", str(error)) from None
    if required and not selectors:
        raise HttpError("bad_query", "the scorer has no query; set spec.source.params.query to a metric's name")
    return selectors


@functools.lru_cache(maxsize=256)
def parse_selectors(text: str) -> tuple[Selector, ...]:
    """Return the selectors joined by `;` in `text`; none for an empty text. Raises SelectorError."""
    selectors: list[Selector] = []
    size = 0
    for query in split_queries(text):
        selectors.append(_parse(query))
        size += sum(matcher.pattern.programsize for matcher in selectors[-1].matchers if matcher.pattern is not None)
        # The total instructions of a scorer's regular expressions bound the time per character of a label.
        if size > 8_000:
            raise SelectorError("the regular expressions of all queries together are too large; write shorter ones")
    return tuple(selectors)


def to_prometheus_name(name: str) -> str:
    """Return an OpenTelemetry name in Prometheus' format: `system.memory.usage` is `system_memory_usage`."""
    return name if name.isidentifier() and name.isascii() else _translate_name(name)


@functools.lru_cache(maxsize=4096)
def _translate_name(name: str) -> str:
    valid_name = re.sub(r"[^a-zA-Z0-9_:]", "_", name) or "_"
    return f"_{valid_name}" if valid_name[0].isdigit() else valid_name


def with_short_names(labels: dict[str, str]) -> dict[str, str]:
    """Return the labels, with `node`, `namespace`, `pod` and `container` added from OpenTelemetry's names."""
    for short_name, long_name in SHORT_NAMES.items():
        if long_name in labels:
            labels.setdefault(short_name, labels[long_name])
    return labels


def _parse(query: str) -> Selector:
    match = _NAME_PATTERN.match(query)
    name = to_prometheus_name(match[0]) if match else ""
    braces = query[match.end() if match else 0 :].strip()
    if not braces and name:
        return Selector(name)
    if not (braces.startswith("{") and braces.endswith("}")):
        raise SelectorError(
            f'{query[:200]!r} is not a selector such as name{{label="value"}}; '
            "functions need a Prometheus as the source"
        )
    matchers: list[Matcher] = []
    matcher_text, position = braces[1:-1], 0
    while matcher_text[position:].strip():
        part = _MATCHER_PATTERN.match(matcher_text, position)
        if part is None:
            raise SelectorError(
                f'{query!r}: expected label="value" (or !=, =~, !~) at {matcher_text[position:].strip()!r}'
            )
        matchers.append(_make_matcher(query, part["label"], part["sign"], part["value"]))
        position = part.end()
        if matcher_text[position : position + 1] == ",":
            position += 1
        elif position < len(matcher_text):
            raise SelectorError(f"{query!r}: expected a comma at {matcher_text[position:]!r}")
    if not name and not matchers:
        raise SelectorError(f"{query!r} selects nothing in particular; give a name or a label")
    return Selector(name, tuple(matchers))


def _unescape(query: str, value: str) -> str:
    """Return a quoted value with its escapes decoded. Raises SelectorError.

    Unknown escapes, such as the escapes of regular expressions, are left as they are.
    """

    def decode_character(escape: re.Match[str]) -> str:
        octal, *hexadecimal, letter = escape.groups()
        if letter is not None:
            return _ESCAPED.get(letter, escape[0])
        code = int(octal, 8) if octal else int(next(filter(None, hexadecimal)), 16)
        if code > sys.maxunicode or 0xD800 <= code < 0xE000 or (octal and code > 0xFF):
            raise SelectorError(f"{query!r}: {escape[0]} is no character")
        return chr(code)

    return _ESCAPE_PATTERN.sub(decode_character, value)


def _make_matcher(query: str, label: str, sign: str, quoted_value: str) -> Matcher:
    value = quoted_value[1:-1]
    if quoted_value[0] != "`":
        value = _unescape(query, value)
    negated = sign.startswith("!")
    if not sign.endswith("~"):
        return Matcher(to_prometheus_name(label), value, negated)
    return Matcher(to_prometheus_name(label), value, negated, _compile_pattern(query, value))


def _compile_pattern(query: str, text: str) -> Any:
    """Compile a pattern for RE2, the engine of Prometheus, whose time is linear in the value. Raises SelectorError."""
    # Imported here because the module takes 5 MB, which agents without such selectors save.
    import re2

    options = re2.Options()
    options.dot_nl = True
    options.never_capture = True
    options.log_errors = False
    # Maximum bytes of one expression.
    options.max_mem = 1024 * 1024
    try:
        return re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
    except UnicodeEncodeError:
        reason = "it holds half of a character"
    raise SelectorError(f"{query!r}: the regular expression {text!r} cannot be used: {reason}")
