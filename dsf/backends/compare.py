"""Comparison of actual and desired objects."""

from __future__ import annotations

from typing import Any

from dsf.backends.protocol import Manifest


def covers(actual: Any, expected: Any) -> bool:
    """True if `actual` contains `expected`; it may have more fields: other managers', and the API server's defaults.

    Lists must have equal lengths.
    """
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(
            name in actual and covers(actual[name], value) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(expected)
            and all(
                covers(actual_item, expected_item) for actual_item, expected_item in zip(actual, expected, strict=True)
            )
        )
    return bool(actual == expected)


def work_contains(work: Manifest, expected: Manifest) -> bool:
    """True if a ManifestWork contains `expected`, and its objects have exactly the same data.

    An additional key was removed on the hub, or is an obsolete password.
    """
    return covers(work, expected) and _list_data(work) == _list_data(expected)


def _list_data(work: Manifest) -> list[object]:
    return [manifest.get("data") for manifest in work["spec"]["workload"]["manifests"]]
