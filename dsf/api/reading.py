"""Lenient reading of stored manifests: a newer CRD may have more fields, and a status may be of another version."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError

from dsf.api.meta import KubernetesObject
from dsf.api.problems import without_unknown

_Object = TypeVar("_Object", bound=KubernetesObject)


def known(manifest: dict[str, Any], model: type[_Object]) -> tuple[dict[str, Any], list[str]]:
    """The manifest without unknown fields, and the unknown fields that users wrote."""
    try:
        model.from_manifest(manifest)
    except ValidationError as error:
        split: tuple[Any, list[str]] = without_unknown(error, manifest)
        less, fields = split
        return less, [field for field in fields if field.partition(".")[0] != "status"]
    return manifest, []


def read(manifest: dict[str, Any], model: type[_Object]) -> _Object:
    """The object. An unreadable status is dropped: the hub will rewrite it.

    Raises pydantic's ValidationError, which `problems.explain` puts into words.
    """
    try:
        return model.from_manifest(manifest)
    except ValidationError:
        return model.from_manifest({name: value for name, value in manifest.items() if name != "status"})


def understood(manifest: dict[str, Any], model: type[_Object]) -> _Object:
    """The object without fields that are unknown to the model. Raises as `read`."""
    return read(known(manifest, model)[0], model)
