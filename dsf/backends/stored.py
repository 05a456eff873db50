"""Format of objects in the out folder: the manifest with an API server's additions."""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime
from typing import Final

from dsf.backends.protocol import Manifest

#: Annotation of an object in the out folder: its source file, relative to the folder of manifests.
FILE_ANNOTATION: Final = "dynamic-scoring.open-cluster-management.io/manifest"


def origin(manifest: Manifest) -> str | None:
    """The source file of an object."""
    annotations = manifest["metadata"].get("annotations")
    file = annotations.get(FILE_ANNOTATION) if isinstance(annotations, dict) else None
    return file if isinstance(file, str) else None


def now() -> str:
    """The creation time. Kubernetes has whole seconds; the fraction orders objects of one second."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def generation(metadata: Manifest) -> int:
    """Number of spec versions, from 1; 0 if missing because the file was edited."""
    number = metadata.get("generation")
    return number if isinstance(number, int) else 0


def as_written(manifest: Manifest) -> Manifest:
    """An object as in its source file: without status and this backend's additions to the metadata."""
    metadata = {name: value for name, value in manifest["metadata"].items() if name in ("name", "namespace", "labels")}
    annotations = {
        name: value
        for name, value in (manifest["metadata"].get("annotations") or {}).items()
        if name != FILE_ANNOTATION
    }
    if annotations:
        metadata["annotations"] = annotations
    return {**{name: value for name, value in manifest.items() if name != "status"}, "metadata": metadata}


def merged(before: Manifest, manifest: Manifest) -> Manifest:
    """`before` updated with `manifest`: mappings are merged, everything else is replaced."""
    result = dict(before)
    for name, value in manifest.items():
        old = result.get(name)
        result[name] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else deepcopy(value)
    return result
