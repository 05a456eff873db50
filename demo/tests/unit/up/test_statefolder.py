from __future__ import annotations

from pathlib import Path

import pytest

from dsf.errors import ToolError
from dsf.up.statefolder import get_default_state_dir, lock_state


def test_state_folder_is_separate_for_each_folder_of_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    first, other = get_default_state_dir(tmp_path / "a" / "demo"), get_default_state_dir(tmp_path / "b" / "demo")
    assert first != other
    assert first.parent == tmp_path / "state" / "dsf"
    assert first.name.startswith("demo-")
    monkeypatch.chdir(tmp_path)
    assert get_default_state_dir(Path("a/demo")) == first


def test_state_folder_is_exclusive_to_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with (
        lock_state(folder),
        pytest.raises(ToolError, match="already runs with its state in"),
        lock_state(folder),
    ):
        pytest.fail("two have it")
    with lock_state(folder):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_uncreatable_state_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolError, match="cannot use the state folder"), lock_state(tmp_path / "file" / "state"):
        pytest.fail("there is no such folder")


def test_errors_of_the_block_are_raised_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), lock_state(tmp_path):
        raise FileNotFoundError
