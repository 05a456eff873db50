"""Payloads between fetch and score."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsf.agent.payload import FilePayload, keep, prepare
from dsf.errors import SettingsError

SMALL, LARGE = b"x" * 1000, b"y" * 700_000


def test_a_small_one_stays_in_memory(tmp_path: Path) -> None:
    assert keep(tmp_path, [SMALL, memoryview(SMALL)]) == SMALL * 2


def test_a_large_one_is_in_a_file_without_a_name(tmp_path: Path) -> None:
    payload = keep(tmp_path, [SMALL, memoryview(LARGE)])
    assert isinstance(payload, FilePayload)
    assert len(payload) == len(SMALL + LARGE)
    # Once for each try.
    for _ in range(2):
        assert b"".join(bytes(piece) for piece in payload) == SMALL + LARGE
    assert list(tmp_path.iterdir()) == []
    payload.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")
def test_what_cannot_be_written_is_an_error() -> None:
    with pytest.raises(OSError, match=r".+"):
        keep(Path("/dev/full"), [LARGE])


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    prepare(None)
    prepare(tmp_path / "new" / "folder")
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=f"DSF_AGENT_SPOOL_DIR: cannot use {tmp_path}/file"):
        prepare(tmp_path / "file")
