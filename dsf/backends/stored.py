"""How objects look in the out folder: as their manifest, with what an API server would add."""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime
from typing import Final

from dsf.backends.protocol import Manifest

#: Annotation of an object in the out folder: the file it comes from, relative to the folder of manifests.
FILE_ANNOTATION: Final = "dynamic-scoring.open-cluster-management.io/manifest"


def origin(manifest: Manifest) -> str | None:
    """The file that an object comes from."""
    annotations = manifest["metadata"].get("annotations")
    file = annotations.get(FILE_ANNOTATION) if isinstance(annotations, dict) else None
    return file if isinstance(file, str) else None


def now() -> str:
    """The time of creation. Kubernetes has whole seconds; the fraction says which of two is the older one."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def generation(metadata: Manifest) -> int:
    """How often the spec changed, counted from 1; 0 when the file does not say, because it was edited."""
    found = metadata.get("generation")
    return found if isinstance(found, int) else 0


def as_written(manifest: Manifest) -> Manifest:
    """An object as its file would say it: without status, and without what this backend added to the metadata."""
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
    """`manifest` laid over what is there: mappings are merged, everything else is replaced."""
    result = dict(before)
    for name, value in manifest.items():
        old = result.get(name)
        result[name] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else deepcopy(value)
    return result
