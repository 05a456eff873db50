"""The sides of `dsf compare`, and how the commands print moments."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from dsf.backtest.commands.backtest import format_moment
from dsf.backtest.commands.replay import _find_manifest


def test_moment_has_seconds_unless_it_is_a_full_minute() -> None:
    assert format_moment(datetime(2026, 11, 30, 21, 9, 35, tzinfo=UTC)).endswith(":09:35")
    assert format_moment(datetime(2026, 11, 30, 21, 9, tzinfo=UTC)).endswith(":09")


def test_scorer_whose_name_ends_like_a_file_is_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _find_manifest("a.yaml") is None
    assert _find_manifest("folder/a.yaml") == Path("folder/a.yaml")
    (tmp_path / "a.yaml").write_text("")
    assert _find_manifest("a.yaml") == Path("a.yaml")
    assert _find_manifest("a.jsonl") is None
