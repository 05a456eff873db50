"""What `dsf demo` leaves behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsf.cli.main import app
from dsf.demo import fleet


def test_an_interrupted_demo_that_is_not_kept_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[bool] = []

    def interrupted(manifests: Path, *_: object) -> None:
        seen.append(manifests.parent.is_dir() and tmp_path in manifests.parents)
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(fleet, "Fleet", interrupted)
    result = CliRunner().invoke(app, ["demo", "--once"], prog_name="dsf")
    assert (result.exit_code, result.stderr) == (130, "dsf: all processes have ended\n")
    assert (seen, list(tmp_path.iterdir())) == ([True], [])
