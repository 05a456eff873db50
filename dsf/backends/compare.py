"""Comparison of actual and desired objects."""

from __future__ import annotations

from typing import Any

from dsf.backends.protocol import Manifest


def covers(actual: Any, expected: Any) -> bool:
    """True if `actual` has all fields of `expected` with equal values. Lists must have equal lengths.

    `actual` may have further fields, which other managers or the API server's defaults have set.
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
    """True if a ManifestWork covers `expected`, and its objects have exactly the same data.

    Further keys of the data do not count as equal: they were removed on the hub, or are obsolete passwords.
    """
    return covers(work, expected) and _list_data(work) == _list_data(expected)


def _list_data(work: Manifest) -> list[object]:
    """Return the data of each ConfigMap and Secret in a ManifestWork, and None for other objects."""
    return [manifest.get("data") for manifest in work["spec"]["workload"]["manifests"]]
