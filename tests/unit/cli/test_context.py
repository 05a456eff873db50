"""The file by which commands find a running demo."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsf.cli import context
from dsf.cli.session import command_settings, redis_hint
from dsf.errors import ContextError

URL = "redis://:sesame@127.0.0.1:7777/0"


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of the test's own, and no DSF_ variables."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("DSF_")]:
        monkeypatch.delenv(name)
    return tmp_path


def ended_process() -> int:
    """The number of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(60)
    return process.pid


def test_what_was_written_is_loaded(tmp_path: Path) -> None:
    file = context.write(redis_url=URL, manifests=tmp_path / "m", out_dir="relative")
    loaded = context.choose()
    assert loaded is not None
    assert loaded.redis_url == URL
    assert loaded.manifests == str(tmp_path / "m")
    assert loaded.out_dir == str(Path("relative").resolve())
    assert loaded.pid == os.getpid()
    assert file == tmp_path / "dsf" / "contexts" / f"{os.getpid()}.json"


def test_the_file_is_for_its_owner_only() -> None:
    file = context.write(redis_url=URL)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [f"{os.getpid()}.json"]


def test_there_is_none_before_the_first() -> None:
    assert context.choose() is None


def test_a_context_whose_process_is_gone_is_ignored() -> None:
    context.write(redis_url=URL, pid=ended_process())
    assert context.choose() is None


def test_a_later_process_with_the_same_number_is_not_taken_for_the_demo() -> None:
    file = context.write(redis_url=URL)
    values = json.loads(file.read_text())
    if values["started"] is None:
        pytest.skip("this system does not say when a process started")
    file.write_text(json.dumps({**values, "started": values["started"] - 1}))
    assert context.choose() is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"redis_url": 1, "pid": 1}', '{"redis_url": "x", "pid": "1"}',
                                  '{"redis_url": "x", "pid": -1}'])  # fmt: skip
def test_a_file_that_makes_no_sense_is_ignored(text: str) -> None:
    context.folder().mkdir(parents=True)
    (context.folder() / "1.json").write_text(text)
    assert context.choose() is None


def test_fields_of_a_newer_version_are_ignored() -> None:
    file = context.write(redis_url=URL)
    file.write_text(json.dumps({**json.loads(file.read_text()), "colour": "blue"}))
    assert context.choose() is not None


def test_remove_takes_only_its_own_away() -> None:
    context.write(redis_url=URL)
    context.remove(pid=os.getpid() + 1)
    assert context.choose() is not None
    context.remove()
    assert context.choose() is None
    context.remove()


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The process of another demo, `other`, beside `mine` of this process; each on a folder below `tmp_path`."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        for name, pid in (("other", process.pid), ("mine", os.getpid())):
            folder = tmp_path / name
            (folder / "sub").mkdir(parents=True)
            started = tmp_path / f"started-{name}"
            started.mkdir()
            monkeypatch.chdir(started)
            context.write(redis_url=f"redis://:{name}@127.0.0.1:7777/0", name=name, manifests=folder, pid=pid)
        monkeypatch.chdir(tmp_path)
        yield process.pid
        process.communicate()


def test_of_two_demos_none_is_taken_silently(other: int, tmp_path: Path) -> None:
    with pytest.raises(ContextError) as raised:
        context.choose()
    assert str(raised.value) == (
        f"2 demos run: mine ({tmp_path / 'mine'}), other ({tmp_path / 'other'}); select one with --context NAME or "
        "FOLDER"
    )


@pytest.mark.parametrize("wanted", ["other", "{}/other", "{}/other/sub", "{}/started-other"])
def test_a_demo_is_chosen_by_name_and_by_folder(other: int, tmp_path: Path, wanted: str) -> None:
    chosen = context.choose(wanted.format(tmp_path))
    assert chosen is not None
    assert chosen.pid == other


@pytest.mark.parametrize(("folder", "name"), [("other", "other"), ("other/sub", "other"), ("started-mine", "mine")])
def test_of_two_demos_the_one_of_the_current_folder(
    other: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path / folder)
    chosen = context.choose()
    assert chosen is not None
    assert chosen.name == name


def test_one_that_does_not_run_is_no_other_one(other: int) -> None:
    with pytest.raises(ContextError, match=r"no demo 'third' runs; running: mine \(.*, other \("):
        context.choose("third")


def test_two_of_one_name_are_told_apart_by_folder(other: int, tmp_path: Path) -> None:
    context.write(redis_url=URL, name="other", manifests=tmp_path / "mine")
    with pytest.raises(ContextError, match="2 demos run"):
        context.choose("other")
    chosen = context.choose(str(tmp_path / "mine"))
    assert chosen is not None
    assert chosen.pid == os.getpid()


def test_the_end_of_one_leaves_the_others(other: int) -> None:
    context.remove(other)
    chosen = context.choose()
    assert chosen is not None
    assert chosen.name == "mine"


def test_what_a_killed_demo_left_is_removed_by_the_next(tmp_path: Path) -> None:
    left = context.write(redis_url=URL, pid=ended_process())
    context.write(redis_url=URL)
    assert not left.exists()


def test_a_command_uses_the_running_demo(tmp_path: Path) -> None:
    context.write(redis_url=URL, manifests=tmp_path, out_dir=tmp_path / "_out")
    settings = command_settings()
    assert settings.resolved_redis_url() == URL
    assert settings.manifests == tmp_path
    assert settings.out_dir == tmp_path / "_out"


def test_a_redis_url_in_the_environment_wins_over_all_of_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.write(redis_url=URL, out_dir=tmp_path)
    monkeypatch.setenv("DSF_REDIS_URL", "redis://other:1/0")
    settings = command_settings()
    assert settings.resolved_redis_url() == "redis://other:1/0"
    assert settings.out_dir is None


def test_the_demo_whose_redis_the_environment_names_is_that_demo(
    other: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal that has sourced the demo's environment gets its folders as well."""
    monkeypatch.setenv("DSF_REDIS_URL", "redis://:other@127.0.0.1:7777/0")
    assert command_settings().manifests == tmp_path / "other"


def test_the_hint_names_the_variable_and_hides_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSF_REDIS_URL", "redis://user:sesame@away:6400/1")
    hint = redis_hint(ConnectionError("Connection refused."))
    assert hint == "cannot use Redis at redis://away:6400/1 (Connection refused): check DSF_REDIS_URL"
    monkeypatch.setenv("DSF_REDIS_URL", "redis://away:6400/1?password=sesame")
    assert "sesame" not in redis_hint(ConnectionError("Connection refused."))


def test_the_hint_says_that_no_demo_runs() -> None:
    assert "no demo runs here and DSF_REDIS_URL is not set" in redis_hint(ConnectionError("refused"))
    context.write(redis_url=URL)
    assert "it belongs to a running demo" in redis_hint(ConnectionError("refused"))
    assert "sesame" not in redis_hint(ConnectionError("refused"))
