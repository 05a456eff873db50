"""Parser of the search language: `state:failing reason:bad_query cluster:eu-*`, and words.

All terms must match; `*` is any text. A word without a field is searched in the names of cluster, scorer and score and
in the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

#: Searchable fields. `item` and `run` need the data of each pair.
FIELDS: Final = ("state", "reason", "stage", "cluster", "set", "label", "scorer", "item", "run")
#: Case-sensitive fields, as in Kubernetes.
_EXACT: Final = ("set", "label")
_TERM: Final = re.compile(r'(?:(\w+):)?(?:"([^"]*)"|(\S+))')


@dataclass(frozen=True)
class Query:
    """A parsed query. `unknown` has invalid field names."""

    text: str
    terms: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    unknown: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.terms or self.words)

    def of(self, field: str) -> list[str]:
        """The patterns of one field; in lower case unless it is case-sensitive."""
        return [pattern for name, pattern in self.terms if name == field]

    def allows(self, field: str, value: str) -> bool:
        """Whether this value matches all patterns of the field."""
        return fits_all(value, self.of(field), exact=field in _EXACT)


def parse(text: str) -> Query:
    """Parse a user's query. Never fails."""
    text = text[:500].strip()
    terms, words, unknown = [], [], []
    for name, quoted, bare in _TERM.findall(text):
        field, value = name.lower(), (quoted or bare)
        if field not in _EXACT:
            value = value.lower()
        if field in FIELDS:
            terms.append((field, value))
        elif name:
            unknown.append(name)
        elif value:
            words.append(value)
    return Query(text, tuple(terms), tuple(words), tuple(unknown))


def fits(value: str, pattern: str, *, exact: bool = False) -> bool:
    """Whether a value matches a pattern, which is in lower case unless `exact`. Brackets and question marks are
    literal.
    """
    # The match is neither a regular expression, of which `*a*a*a*~` could take forever, nor fnmatch, which keeps 32,768
    # of them.
    value = value if exact else value.lower()
    first, *middle = pattern.split("*")
    if not middle:
        return value == first
    last = middle.pop()
    place, end = len(first), len(value) - len(last)
    if place > end or not (value.startswith(first) and value.endswith(last)):
        return False
    for part in middle:
        place = value.find(part, place, end)
        if place < 0:
            return False
        place += len(part)
    return True


def fits_all(value: str, patterns: Iterable[str], *, exact: bool = False) -> bool:
    """Whether a value matches all patterns."""
    return all(fits(value, pattern, exact=exact) for pattern in patterns)


def quoted(text: str) -> str:
    """The text as one term's value."""
    return f'"{text}"' if not text or re.search(r'[\s"]', text) else text
