"""JSON in which no key is there twice: parsers take the last one, and the other value would be lost in silence."""

from __future__ import annotations

import json
from typing import Any

from dsf.errors import ManifestError


def load(text: str | bytes | bytearray) -> Any:
    """Parse JSON. Raises ManifestError for a key that is there twice, otherwise as `json.loads` does."""
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names = [name for name, _ in pairs]
        raise ManifestError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return unique
