"""The spool: whole payloads or none, small ones in memory, large ones in files that are only ours and go at a start."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import traceback
from pathlib import Path

import pytest

from dsf.agent.spool import Spool, SpooledFile, own_folder
from dsf.errors import SettingsError
from dsf.messages import new_run_id

#: What is too large for memory.
LARGE = (b"x" * 300_000,)


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


def test_small_ones_are_in_memory_while_there_is_room(spool: Spool) -> None:
    runs = [new_run_id() for _ in range(20)]
    for run_id in (*runs, *runs):
        spool.write(run_id, (b"x" * 250_000,))
    # 2 MiB of them.
    assert {path.name for path in spool.folder.iterdir()} == set(runs[8:])
    for run_id in runs:
        body = spool.read(run_id)
        assert isinstance(body, bytes)
        assert len(body) == 250_000
        spool.remove(run_id)
    spool.write(runs[-1], (b"x" * 250_000,))
    assert list(spool.folder.iterdir()) == []


@pytest.mark.parametrize("payload", [(b"x",), LARGE])
def test_what_is_not_there_is_none(spool: Spool, payload: tuple[bytes, ...]) -> None:
    run_id = new_run_id()
    assert spool.read(run_id) is None
    spool.remove(run_id)
    spool.write(run_id, payload)
    spool.remove(run_id)
    assert spool.read(run_id) is None
    assert list(spool.folder.iterdir()) == []


@pytest.mark.parametrize("name", ["", "..", "../x", "/etc/passwd", "1718600000000-0000000G", "1718600000000-0000000\n"])
def test_only_run_ids_name_files(spool: Spool, name: str) -> None:
    spool.remove(name)
    for work in (spool.read, lambda run_id: spool.write(run_id, (b"x",))):
        with pytest.raises(ValueError, match="not a run id"):
            work(name)


def test_files_and_folder_are_private(spool: Spool) -> None:
    run_id = new_run_id()
    spool.write(run_id, LARGE)
    assert (spool.folder / run_id).stat().st_mode & 0o777 == 0o600
    assert spool.folder.stat().st_mode & 0o777 == 0o700


def test_a_link_is_not_followed(spool: Spool, tmp_path: Path) -> None:
    run_id = new_run_id()
    target = tmp_path / "target"
    target.write_text("mine")
    (spool.folder / f"{run_id}.part").symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        spool.write(run_id, LARGE)
    assert target.read_text() == "mine"


def test_a_failed_write_leaves_nothing(spool: Spool) -> None:
    run_id = new_run_id()
    folder = spool.folder
    (folder / run_id).mkdir()
    with pytest.raises(OSError, match="directory"):
        spool.write(run_id, LARGE)
    assert [path.name for path in folder.iterdir()] == [run_id]


def test_a_start_empties_it(spool: Spool) -> None:
    spool.write(new_run_id(), LARGE)
    (spool.folder / "anything.part").write_text("x")
    spool.folder.chmod(0o755)
    assert spool.prepare() == 2
    assert list(spool.folder.iterdir()) == []
    assert spool.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("payload", [(b"x",), LARGE])
def test_old_ones_are_swept(spool: Spool, payload: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = new_run_id(), new_run_id()
    now = time.time()
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: now - 100)
        spool.write(old, payload)
    spool.write(new, payload)
    if payload is LARGE:
        os.utime(spool.folder / old, (now - 100, now - 100))
    assert spool.sweep(50) == 1
    assert spool.read(old) is None
    assert spool.read(new) is not None


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(SettingsError, match=f"DSF_AGENT_SPOOL_DIR: .*{name}"):
            Spool(tmp_path / name).prepare()


def test_the_mount_may_be_anyones(tmp_path: Path) -> None:
    # An emptyDir: root's, everyone's to write.
    tmp_path.chmod(0o777)
    spool = Spool(own_folder(tmp_path, "c1"))
    spool.prepare()
    assert spool.folder.parent == tmp_path
    assert tmp_path.stat().st_mode & 0o777 == 0o777
    assert spool.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="another user id can be taken by root only")
def test_any_user_id_will_do_on_a_mount_of_roots() -> None:
    # Not below tmp_path, which other users cannot enter.
    with tempfile.TemporaryDirectory() as mount:
        Path(mount).chmod(0o777)
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(0)
            os.setuid(1000690000)
            os._exit(_use(Path(mount)))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert Path(mount).stat().st_uid == 0
        assert [folder.stat().st_uid for folder in Path(mount).iterdir()] == [1000690000]


def _use(mount: Path) -> int:
    """What an agent does with its spool; 0 when all of it works."""
    try:
        spool, run_id = Spool(own_folder(mount, "c1")), new_run_id()
        spool.prepare()
        spool.write(run_id, LARGE)
        return 0 if isinstance(spool.read(run_id), SpooledFile) and spool.prepare() == 1 else 1
    except (OSError, SettingsError):
        traceback.print_exc()
        return 2


def test_what_another_user_made_is_refused(tmp_path: Path) -> None:
    folder = own_folder(tmp_path, "c1")
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, 65533, 0)
    else:
        folder.rmdir()
        folder.symlink_to("/")
    with pytest.raises(SettingsError, match="not a folder of this user's own"):
        Spool(folder).prepare()


def test_each_cluster_has_a_folder_which_stays_the_same() -> None:
    assert own_folder(None, "a") != own_folder(None, "b")
    assert own_folder(None, "a") == own_folder(None, "a")


def test_a_folder_that_was_cleaned_away_is_made_again(tmp_path: Path) -> None:
    """As of what is in /tmp and was not used for some days."""
    spool = Spool(tmp_path / "tmp" / "spool")
    spool.prepare()
    for gone in (spool.folder, spool.folder.parent):
        run_id = new_run_id()
        spool.write(run_id, LARGE)
        shutil.rmtree(gone)
        assert spool.read(run_id) is None
        spool.write(run_id, LARGE)
        assert isinstance(spool.read(run_id), SpooledFile)
        assert spool.folder.stat().st_mode & 0o777 == 0o700
