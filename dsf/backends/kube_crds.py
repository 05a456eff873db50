"""Compares the CRDs in the cluster with those of this version.

The API server drops fields that its CRD lacks: silently from a status, and for most clients also from a spec. The
schemas are read from the API server's OpenAPI document, which every account may read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dsf.api.types import GROUP, VERSION
from dsf.backends.protocol import Manifest
from dsf.kube.session import Session
from dsf.text import list_names

_PATH: Final = f"/openapi/v3/apis/{GROUP}/{VERSION}"


def describe_missing_fields(session: Session, crds: Sequence[Manifest]) -> str:
    """Return a sentence about the fields of `crds` that the CRDs in the cluster lack; empty if they have all.

    Raises BackendError.
    """
    schemas = session.get(_PATH).get("components", {}).get("schemas", {})
    served_schemas = {
        identity.get("kind"): schema
        for schema in schemas.values()
        for identity in schema.get("x-kubernetes-group-version-kind", ())
    }
    missing_fields: list[str] = []
    for crd in crds:
        kind = crd["spec"]["names"]["kind"]
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        # Skip a kind that is not served: the watch of the kind reports an error.
        if kind in served_schemas:
            missing_fields += [f"{kind} {path}" for path in _find_missing_fields(schema, served_schemas[kind])]
    if not missing_fields:
        return ""
    return (
        "the CRDs in the cluster lack fields of this version, which the API server drops: "
        f"{list_names(missing_fields, 5)}; "
        "install the CRDs of this version (dsf crds | kubectl apply --server-side -f -)"
    )


def _find_missing_fields(schema: Mapping[str, Any], served_schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of the fields of spec and status that `served_schema` lacks, without fields inside of those."""
    if served_schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    served_properties = served_schema.get("properties", {})
    for name, field in schema.get("properties", {}).items():
        if not path and name not in ("spec", "status"):
            continue
        field_path = f"{path}.{name}" if path else name
        if name in served_properties:
            yield from _find_missing_fields(field, served_properties[name], field_path)
        else:
            yield field_path
    for nested, suffix in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(schema.get(nested), Mapping) and isinstance(served_schema.get(nested), Mapping):
            yield from _find_missing_fields(schema[nested], served_schema[nested], path + suffix)
