"""The sides of `dsf compare`: a scorer's name, a manifest or a recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsf.backtest.commands.replay import _find_manifest


def test_scorer_whose_name_ends_like_a_file_is_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _find_manifest("a.yaml") is None
    assert _find_manifest("folder/a.yaml") == Path("folder/a.yaml")
    (tmp_path / "a.yaml").write_text("")
    assert _find_manifest("a.yaml") == Path("a.yaml")
    assert _find_manifest("a.jsonl") is None
