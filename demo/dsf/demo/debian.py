"""Programs that are not Python, from PATH or from Debian's packages.

A package is downloaded with apt-get and unpacked with dpkg-deb into a cache folder, with those of its dependencies that
this machine lacks. The functions install nothing, start no service, and do not need root. Progress goes to standard
error.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dsf.errors import ToolError

#: Seconds for a download or for reading package lists.
_TIMEOUT_SECONDS = 600
#: Name prefixes of packages with files for a browser. Pages link to these files, so they are always unpacked.
_DATA = ("libjs-", "fonts-")


@dataclass(frozen=True)
class DebianProgram:
    """A program: its name, its Debian package, other names on PATH, and where to get it otherwise."""

    name: str
    package: str
    home: str
    aliases: tuple[str, ...] = ()
    #: Arguments that an unpacked copy needs to find its files; `{root}` is the folder with the unpacked package.
    arguments: tuple[str, ...] = ()
    #: Path of the program, if usr/bin only has a script that looks for the rest of an installation.
    executable: str = ""


PROMETHEUS = DebianProgram(
    "prometheus",
    "prometheus",
    "https://prometheus.io/download/",
    arguments=("--web.local-assets={root}/usr/share/prometheus/web",),
)
NODE_EXPORTER = DebianProgram(
    "prometheus-node-exporter", "prometheus-node-exporter", "https://prometheus.io/download/", ("node_exporter",)
)


def is_available() -> bool:
    """True if this machine can download and unpack Debian packages."""
    return all(shutil.which(command) for command in ("apt-get", "dpkg-query", "dpkg-deb"))


def get_cache_dir() -> Path:
    """Return the folder of unpacked packages: `$XDG_CACHE_HOME/dsf/debian`, by default below `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dsf" / "debian"


def find_cached(program: DebianProgram) -> Path | None:
    """Return the program from PATH or from the cache; None if it must be downloaded."""
    for name in (program.name, *program.aliases):
        path = shutil.which(name)
        if path is not None:
            return Path(path)
    launchers = get_cache_dir().glob(f"{program.package}_*/bin/{program.name}")
    return max(launchers, key=lambda path: path.stat().st_mtime, default=None)


def find(program: DebianProgram) -> Path:
    """Return the program, downloaded and unpacked first if needed. Concurrent calls by several processes are safe.

    Raises ToolError, which says how to get the program, when it is not available.
    """
    path = find_cached(program)
    if path is not None:
        return path
    if not is_available():
        raise ToolError(
            f"{program.name} is not on PATH, and without apt-get and dpkg it cannot be unpacked from a Debian package: "
            f"install it ({program.home}) and try again"
        )
    cache = get_cache_dir()
    with _lock_cache(cache):
        # While this process waited for the lock, another one may have unpacked the program.
        return find_cached(program) or _write_launcher(program, _unpack_program(program, cache))


@contextlib.contextmanager
def _lock_cache(cache: Path) -> Iterator[None]:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise ToolError(f"cannot write into the cache folder {cache}: {error.strerror}") from None


def _unpack_program(program: DebianProgram, cache: Path) -> Path:
    """Return the folder of the program's package. Download it first, unless another program of the package did so."""
    folder = max(cache.glob(f"{program.package}_*"), key=lambda path: path.stat().st_mtime, default=None)
    if folder is not None:
        return folder
    # This process has the lock, so the folder is left over from a process that was killed.
    for leftover in cache.glob(".unpacking-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    print(
        f"dsf: {program.name} is not on PATH; unpacking Debian's package {program.package} into {cache}",
        file=sys.stderr,
    )
    with tempfile.TemporaryDirectory(dir=cache, prefix=".unpacking-") as work:
        root = Path(work) / "root"
        try:
            version = unpack(program.package, root, cache / ".apt")
        except ToolError as error:
            raise ToolError(
                f"cannot get {program.name} from Debian's packages: {error}; check the network and the package sources "
                f"of apt, or install it ({program.home}), and try again"
            ) from None
        return root.rename(cache / f"{program.package}_{version.replace(':', '%3a')}")


def _write_launcher(program: DebianProgram, folder: Path) -> Path:
    """Write `bin/<name>`, which runs the program with its own libraries by exec."""
    candidate_paths = (
        [program.executable] if program.executable else [f"usr/bin/{program.name}", f"usr/sbin/{program.name}"]
    )
    executable = next((folder / path for path in candidate_paths if (folder / path).exists()), None)
    if executable is None:
        raise ToolError(f"Debian's package {program.package}, unpacked in {folder}, has no program {program.name}")
    libraries = {str(path.parent) for top in ("usr/lib", "lib") for path in (folder / top).rglob("lib*.so*")}
    environment = f"LD_LIBRARY_PATH={shlex.quote(':'.join(sorted(libraries)))} " if libraries else ""
    arguments = "".join(shlex.quote(text.format(root=folder)) + " " for text in program.arguments)
    launcher = folder / "bin" / program.name
    launcher.parent.mkdir(exist_ok=True)
    # Renamed when complete, because other processes look for it without the lock.
    draft = launcher.with_name(f".{program.name}")
    draft.write_text(f'#!/bin/sh\n{environment}exec {shlex.quote(str(executable))} {arguments}"$@"\n', encoding="utf-8")
    draft.chmod(0o755)
    return draft.rename(launcher)


def unpack(package: str, root: Path, apt: Path) -> str:
    """Unpack a package and the dependencies that this machine lacks into the new folder `root`. Returns its version.

    `apt` is a folder for package lists of our own, read when those of the machine are missing or too old.
    Raises ToolError when a package cannot be downloaded.
    """
    root.mkdir(parents=True)
    try:
        _download(package, root)
    except ToolError as error:
        print(
            f"dsf:   this machine's package lists are missing or too old ({error}); reading fresh ones into {apt}",
            file=sys.stderr,
        )
        for name in ("lists/partial", "cache/archives/partial"):
            (apt / name).mkdir(parents=True, exist_ok=True)
        apt_options = (
            f"Dir::State::lists={apt}/lists/",
            f"Dir::Cache={apt}/cache/",
            # Translations and software-centre data are most of an update, and unused here.
            "Acquire::Languages=none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
        )
        _run_apt("update", options=apt_options)
        _download(package, root, apt_options)
    version = ""
    for archive in root.glob("*.deb"):
        if archive.name.startswith(f"{package}_"):
            version = _run("dpkg-deb", "--field", str(archive), "Version").strip()
        _run("dpkg-deb", "--extract", str(archive), str(root))
        archive.unlink()
    return version


def _download(package: str, folder: Path, options: tuple[str, ...] = ()) -> None:
    """Download a package and the dependencies that this machine lacks."""
    # The list has all packages that an empty machine would need; installed ones are skipped below.
    empty = ("Dir::State::status=/dev/null", "APT::Install-Recommends=false")
    plan = _run_apt("install", "--simulate", package, options=(*options, *empty))
    names = [name for name in re.findall(r"^Inst (\S+)", plan, re.MULTILINE) if _is_wanted(name, package)]
    print(f"dsf:   downloading {' '.join(names)}", file=sys.stderr)
    _run_apt("download", *names, options=options, folder=folder)


def _is_wanted(name: str, package: str) -> bool:
    return name == package or name.startswith(_DATA) or not _is_installed(name)


def _is_installed(name: str) -> bool:
    command = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", name]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout == "installed"


def _run_apt(*arguments: str, options: tuple[str, ...], folder: Path | None = None) -> str:
    # apt's sandbox user cannot write into the folder, so that apt would warn at every download.
    option_words = [word for option in ("APT::Sandbox::User=", *options) for word in ("-o", option)]
    return _run("apt-get", "-q", *option_words, *arguments, folder=folder)


def _run(*command: str, folder: Path | None = None) -> str:
    """Return the output of a command. Raises ToolError with the command's own last message when it fails."""
    what = " ".join(command)
    try:
        process = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
            env=os.environ | {"LC_ALL": "C.UTF-8"},
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"`{what}` did not end within {_TIMEOUT_SECONDS} s") from None
    if process.returncode != 0:
        reasons = re.findall(r"^(?:E: |Err:|dpkg).*", process.stderr + process.stdout, re.MULTILINE)
        raise ToolError(f"`{what}` failed: {reasons[-1].removeprefix('E: ') if reasons else 'no reason given'}")
    return process.stdout
