"""Comparison of actual and wanted objects."""

from __future__ import annotations

from typing import Any


def covers(actual: Any, wanted: Any) -> bool:
    """Whether `actual` contains `wanted`; it may have more fields: other managers', and the API server's defaults.

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
            and all(covers(item, other) for item, other in zip(actual, wanted, strict=True))
        )
    return bool(actual == wanted)
