"""The spool: whole files or none, only ours, empty after a start."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dsf.agent.spool import Spool, SpooledFile, default_folder
from dsf.errors import SettingsError
from dsf.messages import new_run_id


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    made = Spool(tmp_path / "deep" / "spool")
    made.prepare()
    return made


def test_small_payloads_come_back_as_bytes_and_large_ones_in_pieces(spool: Spool) -> None:
    small, large = new_run_id(), new_run_id()
    spool.write(small, (b'{"data":[', memoryview(b"xxabcxx")[2:5], b"]}"))
    assert spool.read(small) == b'{"data":[abc]}'
    pieces = [bytes([number]) * 300_000 for number in range(3)]
    spool.write(large, pieces)
    stored = spool.read(large)
    assert isinstance(stored, SpooledFile)
    assert len(stored) == 900_000
    read = [bytes(piece) for piece in stored]
    assert b"".join(read) == b"".join(pieces)
    assert max(len(piece) for piece in read) <= 256 * 1024
    assert b"".join(bytes(piece) for piece in stored) == b"".join(pieces)


def test_what_is_not_there_is_none(spool: Spool) -> None:
    run_id = new_run_id()
    assert spool.read(run_id) is None
    spool.remove(run_id)
    spool.write(run_id, (b"x",))
    spool.remove(run_id)
    assert spool.read(run_id) is None
    assert list(spool.folder.iterdir()) == []


@pytest.mark.parametrize("name", ["", "..", "../x", "/etc/passwd", "1718600000000-0000000G", "1718600000000-0000000\n"])
def test_only_run_ids_name_files(spool: Spool, name: str) -> None:
    for work in (spool.read, spool.remove, lambda run_id: spool.write(run_id, (b"x",))):
        with pytest.raises(ValueError, match="not a run id"):
            work(name)


def test_files_and_folder_are_private(spool: Spool) -> None:
    run_id = new_run_id()
    spool.write(run_id, (b"x",))
    assert (spool.folder / run_id).stat().st_mode & 0o777 == 0o600
    assert spool.folder.stat().st_mode & 0o777 == 0o700


def test_a_link_is_not_followed(spool: Spool, tmp_path: Path) -> None:
    run_id = new_run_id()
    target = tmp_path / "target"
    target.write_text("mine")
    (spool.folder / f"{run_id}.part").symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        spool.write(run_id, (b"x",))
    assert target.read_text() == "mine"


def test_a_failed_write_leaves_nothing(spool: Spool) -> None:
    run_id = new_run_id()
    folder = spool.folder
    (folder / run_id).mkdir()
    with pytest.raises(OSError, match="directory"):
        spool.write(run_id, (b"x",))
    assert [path.name for path in folder.iterdir()] == [run_id]


def test_a_start_empties_it(spool: Spool) -> None:
    spool.write(new_run_id(), (b"x",))
    (spool.folder / "anything.part").write_text("x")
    spool.folder.chmod(0o755)
    assert spool.prepare() == 2
    assert list(spool.folder.iterdir()) == []
    assert spool.folder.stat().st_mode & 0o777 == 0o700


def test_old_files_are_swept(spool: Spool) -> None:
    old, new = new_run_id(), new_run_id()
    spool.write(old, (b"x",))
    spool.write(new, (b"x",))
    os.utime(spool.folder / old, (time.time() - 100, time.time() - 100))
    assert spool.sweep(50) == 1
    assert spool.read(old) is None
    assert spool.read(new) == b"x"


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(SettingsError, match=f"DSF_AGENT_SPOOL_DIR: .*{name}"):
            Spool(tmp_path / name).prepare()


def test_the_default_is_one_folder_per_cluster() -> None:
    assert default_folder("a") != default_folder("b")
    assert default_folder("a") == default_folder("a")
