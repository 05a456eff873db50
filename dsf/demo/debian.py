"""Debian packages without root: downloaded with apt-get, unpacked with dpkg, with missing dependencies.

Missing files are detected, not assumed: shared libraries that the loader does not find, and dangling symbolic
links. Only packages that may provide them are downloaded.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from dsf.errors import ToolError

#: Never unpacked: a second C library breaks every program; the others are only needed for installation.
_SKIPPED = frozenset({"libc6", "adduser", "debconf", "init-system-helpers", "javascript-common", "lsb-base"})
#: Name prefixes of packages with files for a browser.
_DATA = ("libjs-", "fonts-")
#: First bytes of a program.
_ELF = b"\x7fELF"
#: Timeout of a download in seconds.
_TIMEOUT = 600


def available() -> bool:
    """Whether this machine can download and unpack Debian packages."""
    return all(shutil.which(command) for command in ("apt-get", "dpkg", "dpkg-deb"))


def unpack(package: str, root: Path, apt_dir: Path, *parts: str) -> str:
    """Unpack `package`, `parts` and the dependencies they lack into the new folder `root`. Returns its version.

    `apt_dir` is a folder for separate package lists, used when the machine's are missing or too old.
    Raises ToolError when a package cannot be downloaded.
    """
    apt = Apt(apt_dir)
    root.mkdir(parents=True)
    versions, pending = _fetch(apt, [package], root)
    seen = {package, *parts, *_SKIPPED}
    if parts:
        pending += _fetch(apt, list(parts), root)[1]
    while True:
        libraries, links = missing_libraries(root), dead_links(root)
        wanted = [name for name in dict.fromkeys(pending) if name not in seen and _may_help(name, libraries, links)]
        if not wanted:
            break
        seen |= set(wanted)
        pending += _fetch(apt, wanted, root)[1]
    if libraries:
        raise ToolError(
            f"{package} needs the libraries {', '.join(sorted(libraries))}, which its Debian dependencies do not "
            f"have; install it with `apt-get install {package}`"
        )
    return versions[0]


def _fetch(apt: Apt, packages: list[str], root: Path) -> tuple[list[str], list[str]]:
    """Unpack packages. Returns their versions and the packages they depend on."""
    versions: list[str] = []
    names: list[str] = []
    for archive in apt.download(packages, root.parent):
        versions.append(_run(["dpkg-deb", "--field", str(archive), "Version"]).stdout.strip())
        depends = _run(["dpkg-deb", "--field", str(archive), "Pre-Depends", "Depends"]).stdout
        # `Depends: a (>= 1), b | c`: the name before any version; the first alternative, as in apt.
        names += re.findall(r"(?:^\w[\w-]*:|,)\s*([a-z0-9][a-z0-9.+-]*)", depends, re.MULTILINE)
        done = _run(["dpkg-deb", "--extract", str(archive), str(root)])
        archive.unlink()
        if done.returncode != 0:
            raise ToolError(f"cannot unpack {archive.name}: {_last_words(done)}")
    return versions, names


def library_folders(root: Path) -> list[Path]:
    """The folders below `root` that hold shared libraries."""
    return sorted({path.parent for top in ("usr/lib", "lib") for path in (root / top).rglob("lib*.so*")})


class Apt:
    """apt-get for an unprivileged user, with the machine's package lists or, if unusable, separate ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own_lists = False

    def download(self, packages: list[str], into: Path) -> list[Path]:
        """Download packages into a folder without packages. Raises ToolError with apt's message."""
        print(f"dsf:   downloading {' '.join(packages)}", file=sys.stderr)
        failure = self._try(packages, into)
        if failure and not self._own_lists:
            self._update(failure)
            failure = self._try(packages, into)
        if failure:
            raise ToolError(f"apt-get cannot download {' '.join(packages)}: {failure}")
        return sorted(into.glob("*.deb"))

    def _try(self, packages: list[str], into: Path) -> str:
        """apt's output, or nothing when the downloads exist."""
        done = _run(["apt-get", *self._options(), "download", *packages], cwd=into)
        return "" if done.returncode == 0 else _last_words(done)

    def _update(self, failure: str) -> None:
        print(
            f"dsf:   this machine's package lists do not do ({failure}); reading fresh ones into {self._folder}",
            file=sys.stderr,
        )
        self._own_lists = True
        for name in ("lists/partial", "cache/archives/partial"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        done = _run(["apt-get", *self._options(), "update"], cwd=self._folder)
        if done.returncode != 0:
            raise ToolError(f"apt-get cannot read package lists: {_last_words(done)}")

    def _options(self) -> list[str]:
        # apt's sandbox user cannot write into this folder; apt would warn at every download.
        options = {"APT::Sandbox::User": ""}
        if self._own_lists:
            options |= {
                "Dir::State::lists": f"{self._folder}/lists/",
                "Dir::Cache": f"{self._folder}/cache/",
                # Translations and software-centre data are most of an update and unused here.
                "Acquire::Languages": "none",
                "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            }
        return ["-q", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]


def _run(command: list[str], cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
            env=os.environ | {"LC_ALL": "C.UTF-8"} | environment,
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"`{' '.join(command)}` did not end within {_TIMEOUT} s") from None
    except OSError as error:
        raise ToolError(f"cannot run {command[0]}: {error.strerror}") from None


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith(("E:", "Err:", "dpkg"))]
    return (lines or ["no reason given"])[-1].removeprefix("E: ")


def _may_help(package: str, libraries: set[str], links: set[Path]) -> bool:
    """Whether this dependency may provide missing files. The loader finds libraries of an installed package, but
    a link to another package's files needs them beside it."""
    if package.startswith(_DATA):
        return bool(links)
    if package.startswith("lib"):
        return bool(libraries) and not _installed(package)
    return bool(links)


def _installed(package: str) -> bool:
    return _run(["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]).stdout == "installed"


def missing_libraries(root: Path) -> set[str]:
    """The shared libraries that the loader would not find for the programs below `root`."""
    folders = ":".join(str(path) for path in library_folders(root))
    missing: set[str] = set()
    for program in _programs(root):
        done = _run(["ldd", str(program)], LD_LIBRARY_PATH=folders)
        missing |= set(re.findall(r"^\s*(\S+) => not found", done.stdout, re.MULTILINE))
    return missing


def _programs(root: Path) -> Iterator[Path]:
    # Some packages have a separate folder, started by a script in usr/bin.
    own = (path for path in (root / "usr/lib").glob("*/*") if ".so" not in path.name and os.access(path, os.X_OK))
    for path in [*(root / "usr/bin").glob("*"), *(root / "usr/sbin").glob("*"), *own]:
        if path.is_file():
            with path.open("rb") as stream:
                if stream.read(len(_ELF)) == _ELF:
                    yield path


def dead_links(root: Path) -> set[Path]:
    """Dangling relative symbolic links; absolute ones mean the machine's own files."""
    return {
        path
        for top in ("usr/bin", "usr/sbin", "usr/lib", "usr/share")
        for path in (root / top).rglob("*")
        if path.is_symlink() and not path.readlink().is_absolute() and not path.exists()
    }
