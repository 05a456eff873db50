"""The delivered configuration and its changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from dsf.agent.config import FileConfig


def summaries(*names: str) -> str:
    return json.dumps([{"name": name, "scoreName": f"{name}-score", "scoringInterval": 30} for name in names])


def manifest(text: Any) -> str:
    return yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "data": {"summaries": text}})


def put(path: Path, text: str) -> None:
    draft = path.with_name("draft")
    draft.write_text(text)
    draft.rename(path)


@pytest.mark.parametrize("form", [lambda text: text, manifest, lambda text: f"\n {text}"])
def test_both_forms(tmp_path: Path, form: Any) -> None:
    path = tmp_path / "config"
    put(path, form(summaries("a", "b")))
    config = FileConfig(path)
    assert sorted(config.get_summaries()) == ["a", "b"]
    summary = config.get("a")
    assert summary is not None
    assert (summary.score_name, summary.validity_seconds) == ("a-score", 300)
    assert config.get("c") is None
    assert config.problem == ""
    assert config.loaded_at > 0


def test_every_look_sees_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "config"
    config = FileConfig(path)
    assert config.get_summaries() == {}
    for names in (["a"], ["a", "b"], [], ["c"]):
        put(path, summaries(*names))
        assert sorted(config.get_summaries()) == names
    path.unlink()
    assert config.get_summaries() == {}
    assert config.get("c") is None


def test_kubernetes_mount_is_followed(tmp_path: Path) -> None:
    """The file is a link through another link, which is replaced."""
    (tmp_path / "config.yaml").symlink_to("..data/config.yaml")
    config = FileConfig(tmp_path / "config.yaml")
    for version, names in (("..1", ["a"]), ("..2", ["b"])):
        (tmp_path / version).mkdir()
        (tmp_path / version / "config.yaml").write_text(manifest(summaries(*names)))
        (tmp_path / "..new").symlink_to(version)
        (tmp_path / "..new").rename(tmp_path / "..data")
        assert sorted(config.get_summaries()) == names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[{", "not JSON"),
        ("{}", "neither a JSON array of summaries nor a ConfigMap"),
        (manifest(None), "neither"),
        (manifest("nonsense"), "not JSON"),
        ("a: [1", "line 1: is not YAML"),
        ("[" * 400_000, "not JSON"),
        ("{a: " * 100_000, "nested too deeply"),
        ("!!int 9_9:99[", "not what its tag says"),
        ("!!timestamp 2", "neither"),
        ("!!int ", "not what its tag says"),
        (summaries("a").replace('"a-score"', '""'), "scoreName"),
        (manifest("{}"), "not a JSON array"),
    ],
)
def test_bad_configuration_keeps_the_last_good_one_and_is_reported_once(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config"
    put(path, summaries("a"))
    config = FileConfig(path)
    config.get_summaries()
    put(path, text)
    with capture_logs() as logs:
        for _ in range(3):
            assert sorted(config.get_summaries()) == ["a"]
    assert words in config.problem
    assert [entry["event"] for entry in logs] == ["configuration cannot be used, the last good one stays"]
    put(path, summaries("a"))
    assert sorted(config.get_summaries()) == ["a"]
    assert config.problem == ""


def test_configuration_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(b"\xff\xfe\x00")
    config = FileConfig(path)
    assert config.get_summaries() == {}
    assert config.problem == "not UTF-8 text"


def test_start_reports_a_bad_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config"
    put(path, "[{")
    config = FileConfig(path)
    config.start()
    assert config.problem
    config.stop()
