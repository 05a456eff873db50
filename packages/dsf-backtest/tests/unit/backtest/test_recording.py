"""Recordings of backtests, whose authors are not trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsf.backtest.errors import BacktestError
from dsf.backtest.recording import Recording

_QUESTION = {"cluster": "c", "scorer": "s", "score_name": "s", "every": 60, "validity": 300}
_RECORD = {"cluster": "c", "at": 1_700_000_000, "outcome": "ok", "items": {"a": 1}}


def _file(tmp_path: Path, *lines: dict[str, Any] | str) -> Path:
    path = tmp_path / "recording.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_recording_within_the_bounds_is_read(tmp_path: Path) -> None:
    with Recording(_file(tmp_path, {"question": _QUESTION}, _RECORD)) as recording:
        assert recording.list_moments("c") == [1_700_000_000]


@pytest.mark.parametrize(
    "line",
    [
        {"question": {**_QUESTION, "every": 10**10}},
        {"question": {**_QUESTION, "every": -1}},
        {"question": {**_QUESTION, "validity": 10**300}},
        {**_RECORD, "at": 10**12},
        {**_RECORD, "at": -1},
        {**_RECORD, "items": {str(number): 1 for number in range(60_000)}},
        "[" * 100_000,
    ],
)
def test_line_beyond_the_bounds_is_named(tmp_path: Path, line: dict[str, Any] | str) -> None:
    path = _file(tmp_path, {"question": _QUESTION}, line)
    with pytest.raises(BacktestError, match=r"recording\.jsonl:2: is not a line of a backtest"):
        Recording(path)


def test_line_that_is_too_long_is_named_and_stays(tmp_path: Path) -> None:
    path = _file(tmp_path, {"question": _QUESTION}, json.dumps({**_RECORD, "message": "x" * 17 * 1024 * 1024}))
    size = path.stat().st_size
    with pytest.raises(BacktestError, match=r"recording\.jsonl:2: a line of more than 8388608 bytes"):
        Recording(path, writing=True)
    assert path.stat().st_size == size
