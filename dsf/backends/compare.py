"""Comparison of actual and wanted objects."""

from __future__ import annotations

from typing import Any

from dsf.backends.protocol import Manifest


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


def carries(work: Manifest, wanted: Manifest) -> bool:
    """Whether a ManifestWork is as wanted, with no more data than that: an additional key was removed on the hub, or is
    an obsolete password."""
    return covers(work, wanted) and _data(work) == _data(wanted)


def _data(work: Manifest) -> list[object]:
    return [manifest.get("data") for manifest in work["spec"]["workload"]["manifests"]]
