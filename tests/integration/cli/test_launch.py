"""Each process as a module reports a wrong setting in one line, with the same exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.forked import Forked


@pytest.mark.parametrize("module", ["agent", "hub"])
def test_invalid_setting_is_reported_in_one_line_with_the_usage_exit_code(module: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = Forked(f"dsf.{module}", log, {"DSF_QUEUE_LIMIT": "many"}, inherit=False)
    assert process.wait(60) == 2
    (line,) = log.read_text().splitlines()
    assert line.startswith("error: wrong setting: DSF_QUEUE_LIMIT: ")
