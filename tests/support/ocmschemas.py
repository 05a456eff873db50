"""Schemas of OCM's kinds from its CRD files, and of our kinds, as strict as the API server's strict validation."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf.api.crd import make_crds
from tests.support.chart import ROOT
from tests.support.child import run_program

#: (apiVersion, kind) -> schema
Schemas = dict[tuple[str, str], dict[str, Any]]

_METADATA = {"type": "object", "required": ["name"]}


def read_schemas() -> Schemas:
    """Return the schemas of whole objects. Without OCM's files the test is skipped; in CI it fails."""
    folder = _folder()
    if folder is None:
        message = "OCM's CRD files are not here; `scripts/controlplane crds` gets them"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    return _read(folder)


@functools.cache
def _folder() -> Path | None:
    process = run_program([ROOT / "scripts" / "controlplane", "--no-build", "crds"])
    return Path(process.stdout.strip()) if process.returncode == 0 else None


@functools.cache
def _read(folder: Path) -> Schemas:
    files = [path for group in ("cluster", "work", "addon") for path in (folder / group).glob("*/*.crd.yaml")]
    schemas: Schemas = {}
    for crd in [*make_crds(), *(yaml.load(path.read_text(), Loader=yaml.CSafeLoader) for path in sorted(files))]:
        spec = crd["spec"]
        for version in spec["versions"]:
            schema = _make_strict(version["schema"]["openAPIV3Schema"])
            schema["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": _METADATA}
            schemas[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return schemas


def _make_strict(schema: Any) -> Any:
    """Return a schema that refuses the fields that the API server refuses under strict validation."""
    if isinstance(schema, list):
        return [_make_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {
        # Keys of `properties` are names of fields, not keywords.
        name: {key: _make_strict(part) for key, part in value.items()} if name == "properties" else _make_strict(value)
        for name, value in schema.items()
        if name not in ("default", "example", "enum")
    }
    if "enum" in schema:
        strict["enum"] = schema["enum"]
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-embedded-resource")
    if "properties" in schema and "additionalProperties" not in schema and not is_open:
        strict["additionalProperties"] = False
    return strict
