"""The context file by which commands find a running demo."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dsf.cli import context, session
from dsf.cli.session import describe_redis_error, load_command_settings
from dsf.errors import ContextError

URL = "redis://:sesame@127.0.0.1:7777/0"


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a separate state folder and no DSF_ variables."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("DSF_")]:
        monkeypatch.delenv(name)
    return tmp_path


def test_published_context_is_loaded(tmp_path: Path) -> None:
    with context.publish_demo(redis_url=URL, manifests=tmp_path / "m", out_dir="relative"):
        loaded = context.choose_demo()
    assert loaded is not None
    assert loaded.redis_url == URL
    assert loaded.manifests == str(tmp_path / "m")
    assert loaded.out_dir == str(Path("relative").resolve())


def test_commands_name_the_demo_once(capsys: pytest.CaptureFixture[str]) -> None:
    # A process is one command, but that of the tests, where an earlier test may have named a demo with this address.
    session._print_demo_name.cache_clear()
    with context.publish_demo(redis_url=URL) as file:
        # Some commands read the settings for each of their steps.
        assert {str(load_command_settings().resolved_redis_url()) for _ in range(3)} == {URL}
    assert capsys.readouterr().err.count("using the demo") == 1, file


def test_context_file_is_readable_only_by_its_owner() -> None:
    with context.publish_demo(redis_url=URL) as file:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert list(file.parent.iterdir()) == [file]
    assert not file.exists()


def test_unremovable_context_file_is_left() -> None:
    with context.publish_demo(redis_url=URL) as file:
        shutil.rmtree(file.parent)
        file.parent.write_text("a file in place of the folder")


@pytest.mark.parametrize("function", ["fcntl.flock", "json.dump"])
def test_context_file_that_cannot_be_locked_or_written_is_removed(
    monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(f"dsf.cli.context.{function}", refuse)
    with pytest.raises(OSError, match="No locks available") as raised, context.publish_demo(redis_url=URL):
        pass
    assert ("no lock on a file" in str(raised.value)) is (function == "fcntl.flock")
    assert list(context.get_folder().iterdir()) == []


def test_context_is_absent_before_the_first_demo() -> None:
    assert context.choose_demo() is None


def test_context_of_a_killed_process_is_ignored_and_later_removed() -> None:
    code = (
        "from dsf.cli import context\n"
        f"with context.publish_demo(redis_url={URL!r}) as file:\n    print(file, flush=True)\n    input()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        context_file = Path(process.stdout.readline().strip())
        assert context.choose_demo() is not None
        process.kill()
    assert context_file.exists()
    assert context.choose_demo() is None
    with context.publish_demo(redis_url=URL):
        assert not context_file.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"redis_url": 1}'])
def test_malformed_context_file_is_ignored(text: str) -> None:
    with context.publish_demo(redis_url=URL) as file:
        file.write_text(text)
        assert context.choose_demo() is None


def test_fields_of_a_newer_version_are_ignored() -> None:
    with context.publish_demo(redis_url=URL) as file:
        file.write_text(json.dumps({**json.loads(file.read_text()), "colour": "blue"}))
        assert context.choose_demo() is not None


@pytest.fixture
def two_demos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Publish two demos, `other` and `mine`; each with a folder below `tmp_path`."""
    with ExitStack() as stack:
        for name in ("other", "mine"):
            folder = tmp_path / name
            (folder / "sub").mkdir(parents=True)
            started = tmp_path / f"started-{name}"
            started.mkdir()
            monkeypatch.chdir(started)
            url = f"redis://:{name}@127.0.0.1:7777/0"
            stack.enter_context(context.publish_demo(redis_url=url, name=name, manifests=folder))
        monkeypatch.chdir(tmp_path)
        yield


def test_ambiguous_context_of_two_demos_is_refused(two_demos: None, tmp_path: Path) -> None:
    with pytest.raises(ContextError) as raised:
        context.choose_demo()
    assert str(raised.value) == (
        f"2 demos run: mine ({tmp_path / 'mine'}), other ({tmp_path / 'other'}); select one with --demo NAME or FOLDER"
    )


@pytest.mark.parametrize("selector", ["other", "{}/other", "{}/other/sub", "{}/started-other"])
def test_demo_is_selected_by_name_and_by_folder(two_demos: None, tmp_path: Path, selector: str) -> None:
    selected_demo = context.choose_demo(selector.format(tmp_path))
    assert selected_demo is not None
    assert selected_demo.name == "other"


@pytest.mark.parametrize(("folder", "name"), [("other", "other"), ("other/sub", "other"), ("started-mine", "mine")])
def test_demo_of_the_current_folder_is_selected(
    two_demos: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path / folder)
    selected_demo = context.choose_demo()
    assert selected_demo is not None
    assert selected_demo.name == name


def test_unknown_context_name_is_refused(two_demos: None) -> None:
    with pytest.raises(ContextError, match=r"no demo 'third' runs; running: mine \(.*, other \("):
        context.choose_demo("third")


def test_demos_of_one_name_are_distinguished_by_folder(two_demos: None, tmp_path: Path) -> None:
    with context.publish_demo(redis_url=URL, name="other", manifests=tmp_path / "third"):
        with pytest.raises(ContextError, match="3 demos run"):
            context.choose_demo("other")
        selected_demo = context.choose_demo(str(tmp_path / "third"))
    assert selected_demo is not None
    assert selected_demo.redis_url == URL
    # The other demos remain after one ends.
    assert [demo.name for demo in context.list_running()] == ["mine", "other"]


def test_command_uses_the_running_demo(tmp_path: Path) -> None:
    with context.publish_demo(redis_url=URL, manifests=tmp_path, out_dir=tmp_path / "_out"):
        settings = load_command_settings()
    assert settings.resolved_redis_url() == URL
    assert settings.manifests == tmp_path
    assert settings.out_dir == tmp_path / "_out"


def test_redis_url_of_the_environment_overrides_the_whole_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSF_REDIS_URL", "redis://other:1/0")
    with context.publish_demo(redis_url=URL, out_dir=tmp_path):
        settings = load_command_settings()
    assert settings.resolved_redis_url() == "redis://other:1/0"
    assert settings.out_dir is None


def test_demo_whose_redis_the_environment_names_is_selected(
    two_demos: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Terminals that have sourced the demo's environment get its folders as well."""
    monkeypatch.setenv("DSF_REDIS_URL", "redis://:other@127.0.0.1:7777/0")
    assert load_command_settings().manifests == tmp_path / "other"


def test_redis_hint_names_the_variable_and_hides_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSF_REDIS_URL", "redis://user:sesame@away:6400/1")
    hint = describe_redis_error(ConnectionError("Connection refused."))
    assert hint == "cannot use Redis at redis://away:6400/1 (Connection refused): check DSF_REDIS_URL"
    monkeypatch.setenv("DSF_REDIS_URL", "redis://away:6400/1?password=sesame")
    assert "sesame" not in describe_redis_error(ConnectionError("Connection refused."))


def test_redis_hint_says_that_no_demo_runs() -> None:
    assert "no demo runs here, there is no kubeconfig, and DSF_REDIS_URL is not set" in describe_redis_error(
        ConnectionError("refused")
    )
    with context.publish_demo(redis_url=URL):
        hint = describe_redis_error(ConnectionError("refused"))
    assert "it belongs to a running demo" in hint
    assert "sesame" not in hint
