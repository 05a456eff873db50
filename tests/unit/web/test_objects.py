"""Where the settings of a DynamicScorer come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsf.settings import Settings
from dsf.web.objects import in_folder, parsed, settings_of


def settings(source: dict[str, Any], synced: dict[str, Any] | None = None) -> dict[str, tuple[str, str]]:
    scoring = {"params": {"name": "n", "interval": 30}}
    found = parsed(
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
    assert found is not None
    return {one.name: (one.value, one.origin) for one in settings_of(found)}


def test_scorer_of_another_namespace_is_found_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "dynamicscorers"
    folder.mkdir()
    assert in_folder(tmp_path, "mem", "") is None
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
    found = in_folder(tmp_path, "mem", "")
    assert found is not None
    assert (found.metadata.name, in_folder(tmp_path, "em", "")) == ("mem", None)
    # Of the namespace that has the name, if there are two.
    manifest["metadata"] = {"name": "mem", "namespace": "hub"}
    (folder / "mem.yaml").write_text(json.dumps(manifest))
    chosen = [in_folder(tmp_path, "mem", namespace) for namespace in ("team", "hub", "other")]
    assert [one and one.metadata.namespace for one in chosen] == ["team", "hub", None]


def test_the_page_reads_the_folder_of_the_hub(tmp_path: Path) -> None:
    assert Settings(manifests=tmp_path).out == tmp_path / "_out"
    assert Settings(out_dir=tmp_path).out == tmp_path


@pytest.mark.parametrize(
    ("source", "synced", "origin"),
    [({}, {}, "default"), ({"type": "None"}, {}, "spec"), ({}, {"type": "None"}, "/config")],
)
def test_scorer_without_a_source_shows_no_source_settings(
    source: dict[str, Any], synced: dict[str, Any], origin: str
) -> None:
    found = settings(source, synced)
    assert found["source type"] == ("None", origin)
    assert not {"source host", "source path", "query", "range (s)", "step (s)"} & set(found)
    assert found["scoring host"] == ("http://scorer.test", "default")


def test_the_host_of_a_source_is_by_default_that_of_its_config() -> None:
    found = settings({"params": {"query": "up", "range": 60, "step": 15}})
    assert found["source type"] == ("Prometheus", "default")
    assert found["source host"] == ("http://scorer.test", "default")


def test_unknown_field_of_a_newer_crd_hides_no_scorer() -> None:
    found = parsed(
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
    assert found is not None
    assert found.spec.config_url == "http://scorer.test/config"
    assert parsed({"metadata": {"name": "s"}, "spec": {"description": 1}}) is None
