"""Origins of the settings of a DynamicScorer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsf.settings import Settings
from dsf.web.objects import list_settings, parse_scorer, read_from_folder


def settings(source: dict[str, Any], synced: dict[str, Any] | None = None) -> dict[str, tuple[str, str]]:
    scoring = {"params": {"name": "n", "interval": 30}}
    dynamic_scorer = parse_scorer(
        {
            "metadata": {"name": "s", "namespace": "n"},
            "spec": {
                "description": "d",
                "configURL": "http://scorer.test/config",
                "configSyncMode": "Full",
                "source": source,
                "scoring": scoring,
            },
            "status": {"lastSyncedConfig": {"name": "s", "source": synced or {}, "scoring": scoring}},
        }
    )
    assert dynamic_scorer is not None
    return {setting.name: (setting.value, setting.origin) for setting in list_settings(dynamic_scorer)}


def test_scorer_of_another_namespace_is_found_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "dynamicscorers"
    folder.mkdir()
    assert read_from_folder(tmp_path, "mem", "") is None
    manifest = {
        "metadata": {"name": "mem", "namespace": "team"},
        "spec": {"description": "d", "configURL": "http://scorer.test/config", "configSyncMode": "Full"},
        "status": {
            "conditions": [
                {"type": "Healthy", "status": "False", "reason": "R", "message": "m"},
                {"type": "Ready", "status": "False", "reason": "R", "message": "m"},
            ]
        },
    }
    (folder / "team_mem.yaml").write_text(json.dumps(manifest))
    dynamic_scorer = read_from_folder(tmp_path, "mem", "")
    assert dynamic_scorer is not None
    assert (dynamic_scorer.metadata.name, read_from_folder(tmp_path, "em", "")) == ("mem", None)
    # The namespace selects a scorer if two have the name.
    manifest["metadata"] = {"name": "mem", "namespace": "hub"}
    (folder / "mem.yaml").write_text(json.dumps(manifest))
    matches = [read_from_folder(tmp_path, "mem", namespace) for namespace in ("team", "hub", "other")]
    assert [match and match.metadata.namespace for match in matches] == ["team", "hub", None]


def test_page_reads_the_output_folder_of_the_hub(tmp_path: Path) -> None:
    assert Settings(manifests=tmp_path).out == tmp_path / "_out"
    assert Settings(out_dir=tmp_path).out == tmp_path


@pytest.mark.parametrize(
    ("source", "synced", "origin"),
    [({}, {}, "default"), ({"type": "None"}, {}, "spec"), ({}, {"type": "None"}, "/config")],
)
def test_scorer_without_a_source_shows_no_source_settings(
    source: dict[str, Any], synced: dict[str, Any], origin: str
) -> None:
    setting_origins = settings(source, synced)
    assert setting_origins["source type"] == ("None", origin)
    assert not {"source host", "source path", "query", "range (s)", "step (s)"} & set(setting_origins)
    assert setting_origins["scoring host"] == ("http://scorer.test", "default")


def test_source_host_defaults_to_the_host_of_the_config() -> None:
    setting_origins = settings({"params": {"query": "up", "range": 60, "step": 15}})
    assert setting_origins["source type"] == ("Prometheus", "default")
    assert setting_origins["source host"] == ("http://scorer.test", "default")


def test_unknown_field_of_a_newer_crd_hides_no_scorer() -> None:
    dynamic_scorer = parse_scorer(
        {
            "metadata": {"name": "s", "namespace": "n"},
            "spec": {
                "description": "d",
                "configURL": "http://scorer.test/config",
                "configSyncMode": "Full",
                "later": {"x": 1},
            },
            "status": {"healthStatus": 5},
        }
    )
    assert dynamic_scorer is not None
    assert dynamic_scorer.spec.config_url == "http://scorer.test/config"
    assert parse_scorer({"metadata": {"name": "s"}, "spec": {"description": 1}}) is None


def test_settings_of_an_expression_show_it_with_its_inputs() -> None:
    dynamic_scorer = parse_scorer(
        {
            "metadata": {"name": "s", "namespace": "n"},
            "spec": {
                "description": "d",
                "source": {
                    "type": "Scores",
                    "scores": [{"scorer": "free", "as": "cpu"}, {"scorer": "power", "as": "watts", "default": -100}],
                },
                "scoring": {"expression": "0.7 * cpu + 0.3 * watts", "params": {"name": "n", "interval": 30}},
            },
        }
    )
    assert dynamic_scorer is not None
    values = {setting.name: setting.value for setting in list_settings(dynamic_scorer)}
    assert (values["source type"], values["expression"]) == ("Scores", "0.7 * cpu + 0.3 * watts")
    assert values["input cpu"] == "the score of free"
    assert values["input watts"] == "the score of power, -100 if it is missing"
    assert not {"source host", "scoring host", "scoring path"} & values.keys()


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({}, ("${scoreName}", "default")),
        ({"scoreDimensionFormat": "${node}"}, ("${node}", "spec")),
        ({"scoreDimensionFormats": ["${pod}", "${app}"]}, ("${pod}", "spec")),
        ({"scoreDimensionFormat": "${scoreName}"}, ("${scoreName}", "spec")),
    ],
)
def test_origin_of_the_dimension_format(declared: dict[str, Any], expected: tuple[str, str]) -> None:
    spec = {"description": "d", "configURL": "http://scorer.test/config", "configSyncMode": "Full", **declared}
    dynamic_scorer = parse_scorer({"metadata": {"name": "s", "namespace": "n"}, "spec": spec})
    assert dynamic_scorer is not None
    formats = {
        setting.name: (setting.value, setting.origin)
        for setting in list_settings(dynamic_scorer)
        if "dimension" in setting.name
    }
    assert formats["dimension format"] == expected
    assert formats.get("more dimension formats") == (
        ("${app}", "spec") if len(declared.get("scoreDimensionFormats", ())) > 1 else None
    )
