from __future__ import annotations

from pathlib import Path

import pytest

from dsf.api.cluster import ManagedCluster
from dsf.api.manifest import ParsedDocument, parse_documents
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringconfig import DynamicScoringConfig
from dsf.demo import manifests
from dsf.errors import ToolError

PORTS = {"sample-scorer": 8000, "static-scorer": 8001}


def test_manifests_are_valid(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    assert manifests.prepare(folder, PORTS) == []
    parsed = [document for file in folder.glob("*.yaml") for document in parse_documents(file.read_text(), file.name)]
    documents = [document for document in parsed if isinstance(document, ParsedDocument)]
    assert parsed == documents, "a manifest has a problem"
    objects = [document.object for document in documents]
    assert {
        parsed_object.metadata.name for parsed_object in objects if isinstance(parsed_object, ManagedCluster)
    } == set(manifests.CLUSTERS)
    assert sum(isinstance(parsed_object, DynamicScoringConfig) for parsed_object in objects) == 1
    scorers = {
        parsed_object.metadata.name: parsed_object
        for parsed_object in objects
        if isinstance(parsed_object, DynamicScorer)
    }
    assert {name: scorer.spec.config_url for name, scorer in scorers.items()} == {
        "sample-scorer": "http://127.0.0.1:8000/config",
        "example-performance-scorer": "http://127.0.0.1:8001/performance/config",
        "example-powerconsumption-scorer": "http://127.0.0.1:8001/powerconsumption/config",
        "free-memory": "",
        "memory-and-power": "",
    }


def test_edited_manifest_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    manifests.prepare(folder, PORTS)
    (folder / "static-scorer.yaml").unlink()
    edited = folder / "sample-scorer.yaml"
    edited.write_text(edited.read_text() + "# mine\n")
    before = edited.read_text()
    assert manifests.prepare(folder, PORTS) == []
    assert edited.read_text() == before
    assert not (folder / "static-scorer.yaml").exists()


def test_address_follows_its_scorer_to_another_port(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    manifests.prepare(folder, PORTS)
    # The two change places, and nothing else in the files does.
    notes = manifests.prepare(folder, {"sample-scorer": 8001, "static-scorer": 8000})
    assert [note.partition(":")[0] for note in notes] == ["sample-scorer.yaml", "static-scorer.yaml"]
    assert "configURL: http://127.0.0.1:8001/config\n" in (folder / "sample-scorer.yaml").read_text()
    assert "configURL: http://127.0.0.1:8000/performance/config\n" in (folder / "static-scorer.yaml").read_text()


def test_scorer_added_by_the_user_keeps_its_address(tmp_path: Path) -> None:
    """The scorer may use a port that the demo used for one of its own before."""
    folder = tmp_path / "demo"
    manifests.prepare(folder, PORTS)
    user_manifest = folder / "mine.yaml"
    user_manifest.write_text("configURL: http://127.0.0.1:8000/config\n")
    assert manifests.prepare(folder, {"sample-scorer": 8005, "static-scorer": 8001})
    assert user_manifest.read_text() == "configURL: http://127.0.0.1:8000/config\n"


def test_foreign_manifests_are_not_changed(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "one.yml").write_text("kind: Something\n")
    assert manifests.prepare(folder, PORTS) == []
    assert [path.name for path in folder.iterdir()] == ["one.yml", ".addresses.json"]


def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolError, match=r"cannot write manifests into .*file"):
        manifests.prepare(tmp_path / "file", PORTS)
