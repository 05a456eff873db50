"""Which series a query selects, where the source is no query language: `name{label="value"}`.

This is the instant selector of PromQL and nothing more: no functions, no ranges. `=`, `!=`, `=~` and `!~` mean what
they mean there; regular expressions match the whole value. Dots in names, as OpenTelemetry has them, stand for the
underscores that Prometheus' format has in their place.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dsf.api.promql import split_queries
from dsf.sources.pattern import Pattern, PatternError

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:.]*")
_MATCHER = re.compile(
    r"""\s*(?P<label>[a-zA-Z_][a-zA-Z0-9_.]*)\s*(?P<sign>=~|!~|!=|=)\s*"""
    r"""(?P<value>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)\s*""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'"}


class SelectorError(ValueError):
    """A query that is no selector; the message says what is wrong and what is understood."""


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on one label. A label that is absent is empty."""

    label: str
    value: str
    negated: bool = False
    #: None: the value is compared as it is.
    pattern: Pattern | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a series with these labels fulfils it."""
        value = labels.get(self.label, "")
        if self.pattern is None:
            return (value == self.value) is not self.negated
        return self.pattern.matches(value) is not self.negated


@dataclass(frozen=True, slots=True)
class Selector:
    """One query."""

    #: Of the metric, as in Prometheus' format; empty for all metrics.
    name: str
    matchers: tuple[Matcher, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects the series with these labels, `__name__` among them."""
        if self.name and labels.get("__name__") != self.name:
            return False
        return all(matcher.matches(labels) for matcher in self.matchers)


@functools.lru_cache(maxsize=1024)
def parse_selectors(text: str) -> tuple[Selector, ...]:
    """The selectors that are joined by `;` in `text`, none of an empty text. Raises SelectorError."""
    return tuple(_parse(query) for query in split_queries(text))


def underscored(name: str) -> str:
    """An OpenTelemetry name as Prometheus' format has it: `system.memory.usage` is `system_memory_usage`."""
    return name if name.isidentifier() and name.isascii() else _translated(name)


@functools.lru_cache(maxsize=4096)
def _translated(name: str) -> str:
    cleaned = re.sub(r"[^a-zA-Z0-9_:]", "_", name) or "_"
    return f"_{cleaned}" if cleaned[0].isdigit() else cleaned


def _parse(query: str) -> Selector:
    found = _NAME.match(query)
    name = underscored(found[0]) if found else ""
    rest = query[found.end() if found else 0 :].strip()
    if not rest and name:
        return Selector(name)
    if not (rest.startswith("{") and rest.endswith("}")):
        raise SelectorError(
            f'{query!r} is not a selector such as name{{label="value"}}; functions need a Prometheus as the source'
        )
    matchers: list[Matcher] = []
    inside, position = rest[1:-1], 0
    while inside[position:].strip():
        part = _MATCHER.match(inside, position)
        if part is None:
            raise SelectorError(f'{query!r}: expected label="value" (or !=, =~, !~) at {inside[position:].strip()!r}')
        matchers.append(_matcher(query, part["label"], part["sign"], part["value"]))
        position = part.end()
        if inside[position : position + 1] == ",":
            position += 1
        elif position < len(inside):
            raise SelectorError(f"{query!r}: expected a comma at {inside[position:]!r}")
    if not name and not matchers:
        raise SelectorError(f"{query!r} selects nothing in particular; give a name or a label")
    return Selector(name, tuple(matchers))


def _matcher(query: str, label: str, sign: str, quoted: str) -> Matcher:
    value = quoted[1:-1]
    if quoted[0] != "`":
        value = _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[0]), value)
    negated = sign.startswith("!")
    if not sign.endswith("~"):
        return Matcher(underscored(label), value, negated)
    try:
        return Matcher(underscored(label), value, negated, Pattern(value))
    except PatternError as error:
        raise SelectorError(f"{query!r}: the regular expression {value!r} cannot be used: {error}") from None
