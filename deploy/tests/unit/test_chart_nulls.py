"""Null or empty values. Helm removes a null from the chart's values, so templates do not find the key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import chart

SCHEMA: chart.Object = json.loads((chart.CHART / "values.schema.json").read_text())

#: Every value of upstream's chart.
UPSTREAM = (
    "hubSetting.namespace",
    "hubSetting.skipClusterSetBinding",
    "hubSetting.extraVolumes",
    "hubSetting.extraVolumeMounts",
    "hubSetting.resourceController",
    "hubSetting.resourceController.image",
    "hubSetting.resourceController.image.name",
    "hubSetting.resourceController.image.tag",
    "hubSetting.resourceController.image.pullPolicy",
    "hubSetting.addonController",
    "hubSetting.addonController.image",
    "spokeSetting.namespace",
    "spokeSetting.agent.image",
    "spokeSetting.agent.image.name",
    "spokeSetting.agent.image.tag",
    "spokeSetting.agent.image.pullPolicy",
)
EMPTY: dict[type, Any] = {str: "", list: [], dict: {}, bool: False}


def _default(path: str) -> Any:
    default: Any = chart.DEFAULTS
    for key in path.split("."):
        default = default.get(key) if isinstance(default, dict) else None
    return default


def _set(values: chart.Values, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for key in parents:
        values = values.setdefault(key, {})
    values[last] = value


def _list_innermost(outer: tuple[str, ...]) -> list[str]:
    """Return the paths of `outer` that contain no other of them."""
    return [path for path in outer if not any(path.startswith(f"{other}.") for other in outer)]


@pytest.mark.parametrize("how", ["null", "empty", "outer null"])
def test_empty_upstream_values_mean_the_default(how: str) -> None:
    values: chart.Values = {}
    outer = [path for path in UPSTREAM if any(other.startswith(f"{path}.") for other in UPSTREAM)]
    for path in _list_innermost(UPSTREAM) if how == "outer null" else UPSTREAM:
        if path not in outer or how == "outer null":
            default_objects = _default(path)
            empty = EMPTY[str if default_objects is None else type(default_objects)]
            _set(values, path, empty if how == "empty" else None)
    if how == "empty":
        values["hubSetting"]["addonController"] = {"image": {}}
    rendered, default_objects = chart.render(values), chart.render()
    assert [_drop_random_parts(o) for o in rendered] == [_drop_random_parts(o) for o in default_objects]
    assert "dynamic-scoring" in chart.notes(values)


def _drop_random_parts(rendered_object: chart.Object) -> Any:
    """Return an object without the parts that are random at each rendering."""
    if rendered_object["kind"] == "Secret":
        return rendered_object["metadata"]["name"], sorted(rendered_object["data"])
    text = re.sub(
        "-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", "(a certificate)", json.dumps(rendered_object)
    )
    return re.sub("[0-9a-f]{64}", "(a checksum)", text)


def _structures(schema: chart.Object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield every structure of the values with its parts."""
    yield ".".join(path), schema.get("required", [])
    for name, part in schema.get("properties", {}).items():
        if part.get("type") == "object":
            yield from _structures(part, (*path, name))


@pytest.mark.parametrize(("path", "required"), [pair for pair in _structures(SCHEMA) if pair[1]])
def test_missing_required_value_is_named(path: str, required: list[str]) -> None:
    values: chart.Values = {}
    for name in required:
        _set(values, f"{path}.{name}".removeprefix("."), None)
    with pytest.raises(chart.RenderError) as caught:
        chart.render(values)
    for name in required:
        assert f"'{name}'" in str(caught.value)


def _may_be_null(schema: chart.Object, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, part in schema.get("properties", {}).items():
        # The first entry belongs to Helm.
        if not path and name == "global":
            continue
        if name in schema.get("required", []):
            yield from _may_be_null(part, (*path, name))
        else:
            yield ".".join((*path, name))


def test_all_other_values_may_be_null() -> None:
    values: chart.Values = {}
    for path in _may_be_null(SCHEMA):
        _set(values, path, None)
    for text in map(json.dumps, chart.render(values)):
        for nothing in ("<nil>", "%!", "<no value>", '":0', "//:"):
            assert nothing not in text


def test_all_other_values_may_be_empty() -> None:
    values: chart.Values = {}
    for path in _may_be_null(SCHEMA):
        part: Any = SCHEMA
        for name in path.split("."):
            part = part["properties"][name]
        empty = {"string": "", "array": [], "object": {}}.get(str(part.get("type")))
        if empty is not None and re.search(part.get("pattern", ""), "") and not part.get("minItems"):
            _set(values, path, empty)
    for text in map(json.dumps, chart.render(values)):
        for nothing in ("<nil>", "%!", "<no value>", "//:"):
            assert nothing not in text
