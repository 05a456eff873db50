"""Fields of this version that the CRDs in the cluster lack."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from dsf.api.crd import make_crds
from dsf.api.types import GROUP, VERSION
from dsf.backends.kube_crds import describe_missing_fields


def _document(*crds: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI document of an API server with these CRDs."""
    schemas = {}
    for crd in crds:
        kind = crd["spec"]["names"]["kind"]
        identity = [{"group": GROUP, "kind": kind, "version": VERSION}]
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        schemas[f"x.{kind}"] = {**schema, "x-kubernetes-group-version-kind": identity}
    return {"components": {"schemas": schemas}}


def _describe(document: dict[str, Any]) -> str:
    return describe_missing_fields(Mock(**{"get.return_value": document}), make_crds())


def _schema(document: dict[str, Any], kind: str) -> dict[str, Any]:
    properties: dict[str, Any] = document["components"]["schemas"][f"x.{kind}"]["properties"]
    return properties


def test_current_crds_lack_nothing() -> None:
    assert _describe(_document(*make_crds())) == ""


def test_each_missing_field_is_named() -> None:
    document = _document(*make_crds())
    scorer = _schema(document, "DynamicScorer")
    del scorer["spec"]["properties"]["execution"]["properties"]["hold"]
    del scorer["status"]["properties"]["acts"]
    # Below it nothing else is named.
    del _schema(document, "DynamicScoringConfig")["spec"]["properties"]["masks"]["items"]["properties"]["scoreName"]
    text = _describe(document)
    assert "DynamicScorer spec.execution.hold, DynamicScorer status.acts" in text
    assert "DynamicScoringConfig spec.masks[].scoreName; install the CRDs" in text


@pytest.mark.parametrize("part", ["spec", "status"])
def test_schema_that_keeps_unknown_fields_lacks_nothing(part: str) -> None:
    document = _document(*make_crds())
    _schema(document, "DynamicScorer")[part] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert _describe(document) == ""


def test_kind_that_is_not_served_is_no_older_crd() -> None:
    assert _describe(_document(make_crds()[0])) == ""
    assert _describe({}) == ""


def test_many_missing_fields_are_cut() -> None:
    document = _document(*make_crds())
    _schema(document, "DynamicScorer")["status"] = {"type": "object"}
    assert len(_describe(document)) < 400
