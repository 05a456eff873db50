"""Real packages from a real archive, into a private folder."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from dsf.demo import binaries, debian
from dsf.errors import ToolError

pytestmark = pytest.mark.skipif(not debian.available(), reason="apt-get and dpkg are only on Debian and its relatives")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_redis_with_libraries_that_this_machine_may_lack(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that is installed would be taken as it is.
    monkeypatch.setattr("dsf.demo.binaries.shutil.which", lambda name: None)
    monkeypatch.setattr(debian, "available", lambda: True)
    found = binaries.find("redis-server")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True, timeout=300).stdout
    assert re.match(r"Redis server v=\d", said)
    # The program and the package whose link it is; more only if a library is missing here.
    progress = capfd.readouterr().err
    assert "unpacking Debian's package redis-server" in progress
    assert "downloading redis-server" in progress
    assert binaries.find("redis-server") == found
    assert capfd.readouterr().err == ""


def test_a_machine_whose_package_lists_are_missing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "apt.conf"
    config.write_text('Dir::State::lists "/nonexistent/";\n')
    monkeypatch.setenv("APT_CONFIG", str(config))
    version = debian.unpack("liblzf1", tmp_path / "work" / "root", tmp_path / "apt")
    assert version
    assert list((tmp_path / "work" / "root").rglob("liblzf.so.1"))
    assert "reading fresh ones into" in capfd.readouterr().err


def test_a_package_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"apt-get cannot download no-such-package: .*no-such-package"):
        debian.unpack("no-such-package", tmp_path / "work" / "root", tmp_path / "apt")


def test_missing_files_are_seen(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "usr" / "bin" / "good").symlink_to("/bin/sh")
    dead = root / "usr" / "bin" / "dead"
    dead.symlink_to("../share/nothing")
    os.symlink("/nowhere", root / "usr" / "bin" / "absolute")
    assert debian.dead_links(root) == {dead}
    assert debian.missing_libraries(root) == set()
