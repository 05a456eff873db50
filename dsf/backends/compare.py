"""Comparing objects with what they should be."""

from __future__ import annotations

from typing import Any


def covers(actual: Any, wanted: Any) -> bool:
    """Whether all of `wanted` is in `actual`, which may have more fields: other people's, and an API server's defaults.

    Lists must have equal lengths.
    """
    if isinstance(wanted, dict):
        return isinstance(actual, dict) and all(
            name in actual and covers(actual[name], value) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(wanted)
            and all(covers(one, other) for one, other in zip(actual, wanted, strict=True))
        )
    return bool(actual == wanted)
