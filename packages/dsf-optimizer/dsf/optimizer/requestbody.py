"""Parses JSON requests with bounds and without duplicate keys, and formats their errors."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dsf.api.problems import Mistake
from dsf.boundedjson import Bounds, check
from dsf.errors import ManifestError

#: Maximum bytes of a request's body. A request for 10,000 clusters with three policies each has two million.
MAX_BODY: Final = 4 * 1024 * 1024
#: Bounds of a request. The largest requests have 100,000 values; 500,000 values take some 60 MB as objects.
_BOUNDS: Final = Bounds(MAX_BODY, 500_000, max_depth=32)
#: Maximum keys of one object, because pydantic makes an error of a thousand bytes for each unknown key.
_MAX_KEYS: Final = 100
#: Maximum errors in a message, because one request can have hundreds of thousands.
_MAX_REPORTED_ERRORS: Final = 50


def load_json(text: str | bytes | bytearray) -> Any:
    """Return the parsed JSON document. Duplicate keys are refused, because `json` would silently drop values.

    Raises ManifestError for a duplicate key and for an object with too many keys, JsonBoundsError beyond the bounds,
    and the errors of `json.loads`.
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
    """Return pydantic's errors in one line, each with its location and without the input, at most 50 of them."""
    details = [*details]
    # Remove the prefix that pydantic adds to messages of our validators.
    errors = (
        Mistake(tuple(item["loc"]), item["msg"].removeprefix("Value error, "))
        for item in details[:_MAX_REPORTED_ERRORS]
    )
    omitted_count = len(details) - _MAX_REPORTED_ERRORS
    suffix = f"; and {omitted_count} more mistakes" if omitted_count > 0 else ""
    return "; ".join(map(str, errors)) + suffix
