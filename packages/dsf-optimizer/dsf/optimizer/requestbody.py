"""Requests as JSON: bounds, duplicate keys, and messages for mistakes."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dsf.api.problems import Mistake
from dsf.boundedjson import Bounds, check
from dsf.errors import ManifestError

#: Maximum bytes of a request's body. A plan for 10,000 clusters with three policies each has two million.
MAX_BODY: Final = 4 * 1024 * 1024
#: The largest plans have 100,000 values; all of these take some 60 MB as objects.
_BOUNDS: Final = Bounds(MAX_BODY, 500_000, max_depth=32)
#: Maximum keys of one object. Pydantic makes an error of a thousand bytes of each unknown key.
_MAX_KEYS: Final = 100
#: Maximum mistakes in a message: one request can have hundreds of thousands.
_MAX_REPORTED_MISTAKES: Final = 50


def load_json(text: str | bytes | bytearray) -> Any:
    """Parse JSON without duplicate keys. Parsers keep the last value of such a key, and would silently drop the other
    one.

    Raises ManifestError for a duplicate key and for an object with too many keys, JsonBoundsError beyond the bounds,
    otherwise as `json.loads` does.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes(text)
    check(data, _BOUNDS)
    return json.loads(data, object_pairs_hook=_reject_duplicate_keys)


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique: dict[str, Any] = {}
    for name, value in pairs:
        if name in unique:
            raise ManifestError(f"{reprlib.repr(name)} is there twice")
        unique[name] = value
    if len(unique) > _MAX_KEYS:
        raise ManifestError(f"an object has {len(unique)} keys, more than any part of a request has")
    return unique


def format_errors(details: Iterable[Mapping[str, Any]]) -> str:
    """Return pydantic's errors on one line, each with its location and without the input; if there are very many, the
    first.
    """
    details = [*details]
    # Pydantic prefixes messages of our validators with "Value error, ".
    mistakes = (
        Mistake(tuple(item["loc"]), item["msg"].removeprefix("Value error, "))
        for item in details[:_MAX_REPORTED_MISTAKES]
    )
    suffix = (
        f"; and {len(details) - _MAX_REPORTED_MISTAKES} more mistakes" if len(details) > _MAX_REPORTED_MISTAKES else ""
    )
    return "; ".join(map(str, mistakes)) + suffix
