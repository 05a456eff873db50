from __future__ import annotations

from pathlib import Path

import pytest

from dsf.demo import debian
from dsf.demo.debian import NODE_EXPORTER, PROMETHEUS, DebianProgram
from dsf.errors import ToolError
from tests.support.child import run_program

PROMTOOL = DebianProgram("promtool", "prometheus", "https://prometheus.io/download/")


@pytest.fixture(autouse=True)
def nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a PATH with an empty folder in front of sh and env."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


def script(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_program_on_path_is_preferred(nothing_there: Path) -> None:
    script(debian.get_cache_dir() / "prometheus_1" / "bin" / "prometheus")
    program_path = script(nothing_there / "prometheus")
    assert debian.find(PROMETHEUS) == program_path


def test_alternative_name_on_path_is_found(nothing_there: Path) -> None:
    program_path = script(nothing_there / "node_exporter")
    assert debian.find(NODE_EXPORTER) == program_path


def test_cached_program_is_used_without_a_download() -> None:
    unpacked = script(debian.get_cache_dir() / "prometheus_2.42" / "bin" / "promtool")
    assert debian.find_cached(PROMTOOL) == unpacked
    assert debian.find(PROMTOOL) == unpacked
    assert debian.find_cached(PROMETHEUS) is None


def test_missing_debian_packages_are_reported() -> None:
    with pytest.raises(ToolError, match=r"prometheus is not on PATH.*https://prometheus\.io/download/"):
        debian.find(PROMETHEUS)


def test_unpacked_program_finds_its_own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack(package: str, root: Path, apt: Path) -> str:
        assert package == "prometheus"
        for name in ("prometheus", "promtool"):
            script(root / "usr" / "bin" / name, 'echo "$0|$LD_LIBRARY_PATH|$*"')
        library = root / "usr" / "lib" / "libodd name.so.1"
        library.parent.mkdir()
        library.touch()
        return "1:2.0"

    monkeypatch.setattr(debian, "is_available", lambda: True)
    monkeypatch.setattr(debian, "unpack", unpack)
    # Remains of a demo that was killed are removed.
    (debian.get_cache_dir() / ".unpacking-old" / "root").mkdir(parents=True)
    program_path = debian.find(PROMETHEUS)
    folder = debian.get_cache_dir() / "prometheus_1%3a2.0"
    assert program_path == folder / "bin" / "prometheus"
    output = run_program([program_path, "--a b"], check=True).stdout.strip()
    own_assets = f"--web.local-assets={folder}/usr/share/prometheus/web"
    assert output == f"{folder}/usr/bin/prometheus|{folder}/usr/lib|{own_assets} --a b"
    # Its sister program was unpacked with it, without arguments, and nothing else was left.
    monkeypatch.delattr(debian, "unpack")
    sister = debian.find(PROMTOOL)
    assert sister == folder / "bin" / "promtool"
    output = run_program([sister, "check"], check=True).stdout.strip()
    assert output == f"{folder}/usr/bin/promtool|{folder}/usr/lib|check"
    with pytest.raises(ToolError, match="has no program other"):
        debian.find(DebianProgram("other", "prometheus", ""))
    assert {path.name for path in debian.get_cache_dir().iterdir()} == {".lock", folder.name}


def test_failed_download_leaves_the_cache_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack(package: str, root: Path, apt: Path) -> str:
        root.mkdir(parents=True)
        raise ToolError("apt-get cannot download prometheus: no network")

    monkeypatch.setattr(debian, "is_available", lambda: True)
    monkeypatch.setattr(debian, "unpack", unpack)
    with pytest.raises(ToolError, match=r"no network; check the network.* or install it"):
        debian.find(PROMETHEUS)
    assert {path.name for path in debian.get_cache_dir().iterdir()} == {".lock"}


def test_unwritable_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("")
    monkeypatch.setattr(debian, "is_available", lambda: True)
    with pytest.raises(ToolError, match="cannot write into the cache folder"):
        debian.find(PROMETHEUS)
