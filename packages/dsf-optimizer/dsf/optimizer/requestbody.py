"""Requests as JSON: keys that are there twice, and what is wrong with the others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dsf.api.problems import Mistake
from dsf.errors import ManifestError

#: Mistakes that `brief` names: one request can have hundreds of thousands.
_MOST: Final = 50


def load_json(text: str | bytes | bytearray) -> Any:
    """Parse JSON in which no key is there twice: parsers take the last one, and the other value would be lost in
    silence. Raises ManifestError for such a key, otherwise as `json.loads` does."""
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names = [name for name, _ in pairs]
        raise ManifestError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return unique


def brief(details: Iterable[Mapping[str, Any]]) -> str:
    """Pydantic's mistakes on one line, each with its place and without the input; the first ones of very many."""
    details = [*details]
    # Pydantic prefixes messages of our validators with "Value error, ".
    mistakes = (Mistake(tuple(item["loc"]), item["msg"].removeprefix("Value error, ")) for item in details[:_MOST])
    more = f"; and {len(details) - _MOST} more mistakes" if len(details) > _MOST else ""
    return "; ".join(map(str, mistakes)) + more
