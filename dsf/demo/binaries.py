"""Programs that are not Python: Prometheus, the node exporter, Redis.

They come from PATH, else from Debian's packages, which are downloaded and unpacked into a cache folder. Nothing is
installed on the machine, no service is started, and root is not needed. Progress goes to standard error.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dsf.demo import debian
from dsf.errors import ToolError


@dataclass(frozen=True)
class DebianProgram:
    """A program: its Debian package, other names on PATH, and where else to get it."""

    package: str
    aliases: tuple[str, ...] = ()
    home: str = ""
    #: Arguments that an unpacked copy needs to find its own files; `{root}` is where it was unpacked.
    arguments: tuple[str, ...] = ()
    #: Packages with required files that dependency checks do not detect.
    parts: tuple[str, ...] = ()
    #: Its path, when usr/bin only has a script that looks for the rest of an installation.
    executable: str = ""


PROGRAMS = {
    "redis-server": DebianProgram("redis-server", ("valkey-server",), "https://redis.io/docs/latest/get-started/"),
    "redis-cli": DebianProgram("redis-tools", ("valkey-cli",), "https://redis.io/docs/latest/get-started/"),
    "prometheus": DebianProgram(
        "prometheus",
        (),
        "https://prometheus.io/download/",
        ("--web.local-assets={root}/usr/share/prometheus/web",),
    ),
    "promtool": DebianProgram("prometheus", (), "https://prometheus.io/download/"),
    "prometheus-node-exporter": DebianProgram(
        "prometheus-node-exporter", ("node_exporter",), "https://prometheus.io/download/"
    ),
    "victoria-metrics": DebianProgram("victoria-metrics", (), "https://docs.victoriametrics.com/"),
    # For proxy tests.
    "tinyproxy": DebianProgram("tinyproxy-bin", (), "https://tinyproxy.github.io/"),
    # For tests and pictures of the page.
    "nginx": DebianProgram("nginx", (), "https://nginx.org/"),
    "chromium": DebianProgram(
        "chromium",
        ("chromium-browser", "google-chrome"),
        "https://www.chromium.org/",
        parts=("chromium-common",),
        executable="usr/lib/chromium/chromium",
    ),
}


def cache_dir() -> Path:
    """Folder of unpacked packages: `$XDG_CACHE_HOME/dsf/debian`, by default under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dsf" / "debian"


def cached(name: str) -> Path | None:
    """The program `name` from PATH or from the cache; None when it needs a download."""
    program = PROGRAMS[name]
    for candidate in (name, *program.aliases):
        path = shutil.which(candidate)
        if path is not None:
            return Path(path)
    unpacked = sorted(cache_dir().glob(f"{program.package}_*/bin/{name}"), key=lambda path: path.stat().st_mtime)
    return unpacked[-1] if unpacked else None


def find(name: str) -> Path:
    """The program `name`, downloaded and unpacked first if needed. Concurrent calls by several processes are safe.

    Raises ToolError, which says how to get the program, when it is not available.
    """
    path = cached(name)
    if path is not None:
        return path
    program = PROGRAMS[name]
    if not debian.available():
        raise ToolError(
            f"{name} is not on PATH, and without apt-get and dpkg it cannot be unpacked from a Debian package: "
            f"install it ({program.home}) and try again"
        )
    cache = cache_dir()
    with _locked(cache):
        # Another process may have unpacked it while this one waited.
        return cached(name) or _unpack(name, program, cache)


@contextlib.contextmanager
def _locked(cache: Path) -> Iterator[None]:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise ToolError(f"cannot write into the cache folder {cache}: {error.strerror}") from None


def _unpack(name: str, program: DebianProgram, cache: Path) -> Path:
    print(f"dsf: {name} is not on PATH; unpacking Debian's package {program.package} into {cache}", file=sys.stderr)
    work = Path(tempfile.mkdtemp(dir=cache, prefix=".unpacking-"))
    try:
        root = work / "root"
        version = debian.unpack(program.package, root, cache / ".apt", *program.parts)
        folder = cache / f"{program.package}_{version.replace(':', '%3a')}"
        for command, other in PROGRAMS.items():
            if other.package == program.package:
                _launcher(root, folder, command, other)
        if not (root / "bin" / name).exists():
            raise ToolError(f"Debian's package {program.package} {version} has no program {name}")
        shutil.rmtree(folder, ignore_errors=True)
        root.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder / "bin" / name


def _launcher(root: Path, folder: Path, command: str, program: DebianProgram) -> None:
    """Write `bin/<command>`, which runs the program with its own libraries by exec."""
    places = [program.executable] if program.executable else [f"usr/bin/{command}", f"usr/sbin/{command}"]
    executable = next((path for path in places if (root / path).exists()), None)
    if executable is None:
        return
    libraries = [str(folder / path.relative_to(root)) for path in debian.library_folders(root)]
    environment = f"LD_LIBRARY_PATH={shlex.quote(':'.join(libraries))} " if libraries else ""
    arguments = "".join(shlex.quote(text.format(root=folder)) + " " for text in program.arguments)
    launcher = root / "bin" / command
    launcher.parent.mkdir(exist_ok=True)
    launcher.write_text(
        f'#!/bin/sh\n{environment}exec {shlex.quote(str(folder / executable))} {arguments}"$@"\n',
        encoding="utf-8",
    )
    launcher.chmod(0o755)
