"""The language of the search box: `state:failing reason:bad_query cluster:eu-*`, and words.

Each term must hold; `*` stands for any text. A word without a name is looked for in the names of cluster, scorer and
score and in the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

#: What can be asked for by name. `item` and `run` need more than a glance at each pair.
FIELDS: Final = ("state", "reason", "stage", "cluster", "set", "label", "scorer", "item", "run")
#: In these case counts, as it does in Kubernetes.
_EXACT: Final = ("set", "label")
_TERM: Final = re.compile(r'(?:(\w+):)?(?:"([^"]*)"|(\S+))')
_LONGEST: Final = 500


@dataclass(frozen=True)
class Query:
    """What was asked for. `unknown` has names that cannot be asked for."""

    text: str
    terms: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    unknown: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.terms or self.words)

    def of(self, field: str) -> list[str]:
        """The patterns of one field; in lower case where case does not count."""
        return [pattern for name, pattern in self.terms if name == field]

    def allows(self, field: str, value: str) -> bool:
        """Whether this value fits all that was said of the field."""
        return all(fits(value, pattern, exact=field in _EXACT) for pattern in self.of(field))

    def has_words_in(self, *values: str) -> bool:
        """Whether each word is in one of the values."""
        return all(any(word in value.lower() for value in values) for word in self.words)


def parse(text: str) -> Query:
    """What a person typed. Never fails."""
    text = text[:_LONGEST].strip()
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
    """Whether a value is what a pattern asks for, which is in lower case unless case counts (`exact`). Brackets and
    question marks stand for themselves."""
    # Not by a regular expression: `*a*a*a*~` could keep one busy for ever.
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


def quoted(text: str) -> str:
    """The text as one term's value."""
    return f'"{text}"' if not text or re.search(r'[\s"]', text) else text
