"""The generated CRDs are structural and documented. Other tests apply them to an API server."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dsf.api.crd import dump_crds, make_crds
from dsf.api.scorer import DynamicScorerSpec, DynamicScorerStatus

FORBIDDEN = {"$ref", "anyOf", "const", "title", "$defs", "nullable"}


#: Made once, as tests only read them.
_crds = functools.cache(make_crds)


def _schema(index: int) -> dict[str, Any]:
    schema: dict[str, Any] = _crds()[index]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _walk(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, value in schema.get("properties", {}).items():
        yield from _walk(value, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        yield from _walk(schema["items"], f"{path}[]")


@pytest.mark.parametrize("index", [0, 1, 2])
def test_every_part_is_structural(index: int) -> None:
    for path, part in _walk(_schema(index)):
        assert "type" in part, path
        assert not FORBIDDEN & part.keys(), path
        assert part.get("additionalProperties") is not False, path


@pytest.mark.parametrize("index", [0, 1, 2])
def test_every_field_below_spec_and_status_is_described(index: int) -> None:
    for path, part in _walk(_schema(index)):
        if path.startswith((".spec.", ".status.")) and not path.endswith("[]"):
            assert part.get("description"), path


def test_every_field_of_the_model_is_in_the_schema() -> None:
    schema = _schema(0)["properties"]
    for model, part in ((DynamicScorerSpec, "spec"), (DynamicScorerStatus, "status")):
        assert set(schema[part]["properties"]) == {field.alias for field in model.model_fields.values()}


def test_rules_reach_the_schema() -> None:
    spec = _schema(0)["properties"]["spec"]
    assert spec["required"] == ["description"]
    properties = spec["properties"]
    assert properties["configURL"]["pattern"] == "^[hH][tT][tT][pP][sS]?://.+$"
    assert properties["scoring"]["properties"]["params"]["required"] == ["name", "interval"]
    types = ["Prometheus", "OpenTelemetry", "Kubernetes", "Object", "Scores", "None"]
    (rule,) = properties["source"]["properties"]["type"]["x-kubernetes-validations"]
    assert rule["rule"].startswith(f"self in {types} || self.matches(")
    assert properties["configSyncMode"]["enum"] == ["Full", "None"]
    assert properties["location"]["default"] == "Internal"
    assert properties["scoring"]["properties"]["params"]["properties"]["interval"]["minimum"] == 1
    token = properties["scoring"]["properties"]["auth"]["properties"]["tokenSecretRef"]
    assert token["required"] == ["name", "key"]
    failing = properties["execution"]["properties"]["whenFailing"]
    assert failing["x-kubernetes-validations"][0] == {
        "rule": "(self.behavior == 'Value') == has(self.value)",
        "message": "value goes with behavior Value and only with it",
    }


def test_no_default_fills_a_status() -> None:
    for path, part in _walk(_schema(0)["properties"]["status"]):
        assert "default" not in part, path


def test_columns_name_fields_that_exist() -> None:
    for index in (0, 1, 2):
        version = _crds()[index]["spec"]["versions"][0]
        fields = {path for path, _ in _walk(version["schema"]["openAPIV3Schema"])} | {".metadata.creationTimestamp"}
        for column in version["additionalPrinterColumns"]:
            assert column["jsonPath"].partition("[?")[0] in fields, column


def test_written_crds_equal_the_generated_objects() -> None:
    assert list(yaml.load_all(dump_crds(), Loader=yaml.CSafeLoader)) == _crds()


def test_upstream_kinds_describe_their_version() -> None:
    descriptions = [_schema(index)["description"] for index in range(3)]
    assert ["upstream project's version" in text for text in descriptions] == [True, True, False]
    assert _crds()[2]["spec"]["names"]["kind"] == "ScoringAuthentication"
