"""Schemas of OCM's kinds, from its CRD files, and of ours, made as strict as the API server's strict validation."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf.api.crd import make_crds
from tests.support.chart import ROOT
from tests.support.child import ran

#: (apiVersion, kind) -> schema
Schemas = dict[tuple[str, str], dict[str, Any]]

_METADATA = {"type": "object", "required": ["name"]}


def by_kind() -> Schemas:
    """Schemas of the whole objects. Without OCM's files the test is skipped; in CI that is a failure."""
    folder = _folder()
    if folder is None:
        message = "OCM's CRD files are not here; `scripts/controlplane crds` gets them"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    return _read(folder)


@functools.cache
def _folder() -> Path | None:
    process = ran([ROOT / "scripts" / "controlplane", "--no-build", "crds"])
    return Path(process.stdout.strip()) if process.returncode == 0 else None


@functools.cache
def _read(folder: Path) -> Schemas:
    files = [path for group in ("cluster", "work", "addon") for path in (folder / group).glob("*/*.crd.yaml")]
    schemas: Schemas = {}
    for crd in [*make_crds(), *(yaml.safe_load(path.read_text()) for path in sorted(files))]:
        spec = crd["spec"]
        for version in spec["versions"]:
            schema = _strict(version["schema"]["openAPIV3Schema"])
            schema["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": _METADATA}
            schemas[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return schemas


def _strict(schema: Any) -> Any:
    """Refuse fields that the API server would refuse under strict validation, too."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {
        # Names of properties are no keywords.
        name: {key: _strict(part) for key, part in value.items()} if name == "properties" else _strict(value)
        for name, value in schema.items()
        if name not in ("default", "example", "enum")
    }
    if "enum" in schema:
        strict["enum"] = schema["enum"]
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-embedded-resource")
    if "properties" in schema and "additionalProperties" not in schema and not is_open:
        strict["additionalProperties"] = False
    return strict
