"""Real packages from a real archive, into a private folder."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsf.demo import debian
from dsf.errors import ToolError
from tests.support import programs
from tests.support.child import run_program

pytestmark = pytest.mark.skipif(
    not debian.is_available(), reason="apt-get and dpkg are only on Debian and its relatives"
)


@pytest.fixture(scope="module", autouse=True)
def apt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder for package lists of our own, in a cache of these tests: the first one that needs them reads them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield debian.get_cache_dir() / ".apt"


@contextlib.contextmanager
def archive() -> Iterator[None]:
    """Where there is no way to an archive a test is skipped; in CI that is a failure."""
    try:
        yield
    except ToolError as error:
        if os.environ.get("CI", "").lower() != "true":
            try:
                socket.getaddrinfo("deb.debian.org", 80)
            except OSError:
                pytest.skip(f"no archive of packages: {error}")
        raise


def test_redis_package_is_unpacked_with_its_missing_libraries(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A server on PATH would be used as it is.
    monkeypatch.setattr("dsf.demo.debian.shutil.which", lambda name: None)
    monkeypatch.setattr(debian, "is_available", lambda: True)
    with archive():
        server_path = programs.find("redis-server")
    version_text = run_program([server_path, "--version"], check=True).stdout
    assert re.match(r"Redis server v=\d", version_text)
    progress = capfd.readouterr().err
    assert "unpacking Debian's package redis-server" in progress
    # The package whose link the program is, unless it is installed; the same goes for libraries.
    assert re.search("downloading .*redis-server", progress)
    assert programs.find("redis-server") == server_path
    assert capfd.readouterr().err == ""


def test_package_lists_are_downloaded_if_the_machine_has_none(
    apt: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "apt.conf"
    config.write_text('Dir::State::lists "/nonexistent/";\n')
    monkeypatch.setenv("APT_CONFIG", str(config))
    with archive():
        version = debian.unpack("liblzf1", tmp_path / "work" / "root", apt)
    assert version
    assert list((tmp_path / "work" / "root").rglob("liblzf.so.1"))
    assert "reading fresh ones into" in capfd.readouterr().err


def test_missing_package_is_reported(apt: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"install --simulate no-such-package.* failed: .*no-such-package"):
        debian.unpack("no-such-package", tmp_path / "work" / "root", apt)


def test_prometheus_package_is_unpacked_with_the_packages_it_links_to(apt: Path, tmp_path: Path) -> None:
    """The linked packages are unpacked even if they are installed."""
    with archive():
        debian.unpack("prometheus", tmp_path / "work" / "root", apt)
    links = [
        path for path in (tmp_path / "work" / "root" / "usr" / "share" / "prometheus").rglob("*") if path.is_symlink()
    ]
    assert links
    assert [link for link in links if not link.exists()] == []
