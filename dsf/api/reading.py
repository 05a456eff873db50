"""Manifests as the hub reads them: a newer CRD may know more fields, and a status may be another version's."""

from __future__ import annotations

from typing import Any, Protocol, Self, TypeVar

from pydantic import ValidationError

from dsf.api.problems import without_unknown


class _Model(Protocol):
    @classmethod
    def from_manifest(cls, manifest: dict[str, Any]) -> Self: ...


_Object = TypeVar("_Object", bound=_Model)


def known(manifest: dict[str, Any], model: type[_Object]) -> tuple[dict[str, Any], list[str]]:
    """The manifest without fields that the model does not know, and which of these people wrote."""
    try:
        model.from_manifest(manifest)
    except ValidationError as error:
        found: tuple[Any, list[str]] = without_unknown(error, manifest)
        less, fields = found
        return less, [field for field in fields if field.partition(".")[0] != "status"]
    return manifest, []


def read(manifest: dict[str, Any], model: type[_Object]) -> _Object:
    """The object. A status that cannot be read is left out: it is the hub's own, and will be written anew.

    Raises pydantic's ValidationError, which `problems.explain` puts into words.
    """
    try:
        return model.from_manifest(manifest)
    except ValidationError:
        return model.from_manifest({name: value for name, value in manifest.items() if name != "status"})


def understood(manifest: dict[str, Any], model: type[_Object]) -> _Object:
    """The object as far as the model knows its fields. Raises as `read`."""
    return read(known(manifest, model)[0], model)
