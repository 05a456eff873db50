"""Output and remains of an interrupted `dsf demo --once`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from typer.testing import CliRunner

from dsf.cli.main import app
from dsf.demo import fleet
from dsf.up.stack import StackOptions


def test_interrupted_demo_without_keep_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder_states: list[bool] = []

    def interrupted(manifests: Path, *_: object, **__: object) -> None:
        folder_states.append(manifests.parent.is_dir() and tmp_path in manifests.parents)
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(fleet, "Fleet", interrupted)
    result = CliRunner().invoke(app, ["demo", "--once"], prog_name="dsf")
    assert (result.exit_code, result.stderr) == (130, "dsf: all processes have ended\n")
    assert (folder_states, list(tmp_path.iterdir())) == ([True], [])


def test_interrupted_wait_for_scores_is_no_success(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    waiting = MagicMock(host_aliases={}, out_dir=tmp_path)
    waiting.stack.redis_url = "redis://127.0.0.1:1/0"
    waiting.stack.options = StackOptions(manifests=tmp_path, out_dir=tmp_path, state_dir=tmp_path)
    waiting.tick.side_effect = KeyboardInterrupt
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    fleet_class = MagicMock(return_value=waiting)
    monkeypatch.setattr(fleet, "Fleet", fleet_class)
    result = CliRunner().invoke(app, ["demo", "--once"], prog_name="dsf")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "dsf: all processes have ended\n")
    waiting.tick.assert_called_once_with()
    # The demo ends with the scores, so nobody could look at Flower.
    assert fleet_class.call_args.kwargs == {"has_flower": False}
    # Prometheus needs the longest until its first data.
    steps = [name for name, *_ in waiting.mock_calls if name in ("prepare", "start_clusters", "start")]
    assert steps == ["prepare", "start_clusters", "start"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
