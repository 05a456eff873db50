"""Contexts: one file per running demo in the user's state folder, by which commands in other terminals find it.

`dsf demo` and `dsf up` write the file when they are ready and remove it when they end. It may contain a Redis password,
so only its owner can read it. Files of dead processes are ignored, and the next demo removes them.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dsf.errors import ContextError

#: Value of `--context`.
_wanted: str | None = None


def want(name_or_folder: str | None) -> None:
    """Store the value of `--context`. Every command with the option calls it, so that none inherits another's."""
    global _wanted  # noqa: PLW0603
    _wanted = name_or_folder


def wanted() -> str | None:
    """Value of `--context`."""
    return _wanted


@dataclass(frozen=True)
class CliContext:
    """A running set of processes. Folders are absolute paths; None stands for a process that does not run."""

    redis_url: str
    pid: int
    #: Name for `--context`; two demos may share a name, but not a folder of manifests.
    name: str = "demo"
    #: Working directory at startup.
    started_in: str | None = None
    manifests: str | None = None
    out_dir: str | None = None
    #: Cluster -> `DSF_AGENT_HOST_ALIASES` of its agent, for `dsf explain`.
    host_aliases: dict[str, dict[str, str]] = field(default_factory=dict)
    #: Start time of the process in kernel clock ticks; distinguishes it from a later process with the same id.
    started: int | None = None

    @property
    def alive(self) -> bool:
        """Whether the process that wrote this still runs."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            # Another user's process: ours is gone and its id was reused.
            return False
        return self.started is None or self.started == _start_ticks(self.pid)

    def covers(self, folder: Path) -> bool:
        """Whether `folder` (absolute) is the start folder of this context, or in its folder of manifests."""
        inside = self.manifests is not None and folder.is_relative_to(self.manifests)
        return inside or str(folder) == self.started_in

    def is_called(self, wanted: str) -> bool:
        """Whether `--context` selects this one: by its name, or by a folder that it covers."""
        return wanted == self.name or self.covers(Path(wanted).resolve())

    def __str__(self) -> str:
        return f"{self.name} ({self.manifests or self.started_in or self.pid})"


def folder() -> Path:
    """Folder of the files: `$XDG_STATE_HOME/dsf/contexts`, by default under `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "dsf" / "contexts"


def running() -> list[CliContext]:
    """All running demos, sorted by name. Unusable files are ignored."""
    read = (_read(file) for file in folder().glob("*.json"))
    return sorted((demo for demo in read if demo is not None and demo.alive), key=str)


def choose(wanted: str | None = None) -> CliContext | None:
    """The running demo that `wanted` selects: by name, folder of manifests or start folder.

    Without `wanted`, the only running demo, or the one to which the current folder belongs; None if none runs. Raises
    ContextError, which lists the running demos, if the selection is ambiguous.
    """
    demos = running()
    listed = ", ".join(str(demo) for demo in demos) or "none"
    if wanted is not None:
        fitting = [demo for demo in demos if demo.is_called(wanted)]
        if not fitting:
            raise ContextError(f"no demo {wanted!r} runs; running: {listed}")
    elif len(demos) <= 1:
        fitting = demos
    else:
        fitting = [demo for demo in demos if demo.covers(Path.cwd())]
    if len(fitting) > 1 or (demos and not fitting):
        raise ContextError(f"{len(demos)} demos run: {listed}; select one with --context NAME or FOLDER")
    return fitting[0] if fitting else None


def write(
    *,
    redis_url: str,
    name: str = "demo",
    manifests: Path | str | None = None,
    out_dir: Path | str | None = None,
    host_aliases: Mapping[str, Mapping[str, str]] | None = None,
    pid: int | None = None,
) -> Path:
    """Publish the set of process `pid` (default: this one) to other terminals. Returns the file.

    Raises OSError when the file cannot be written.
    """
    owner = os.getpid() if pid is None else pid
    context = CliContext(
        redis_url=redis_url,
        pid=owner,
        name=name,
        started_in=str(Path.cwd()),
        manifests=None if manifests is None else str(Path(manifests).resolve()),
        out_dir=None if out_dir is None else str(Path(out_dir).resolve()),
        host_aliases={cluster: dict(names) for cluster, names in (host_aliases or {}).items()},
        started=_start_ticks(owner),
    )
    file = _file(owner)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for other in file.parent.glob("*.json"):
        if (left := _read(other)) is not None and not left.alive:
            other.unlink(missing_ok=True)
    # mkstemp creates it with mode 0600.
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".context-")
    with open(descriptor, "w", encoding="utf-8") as stream:
        json.dump(asdict(context), stream)
    Path(temporary).replace(file)
    return file


def remove(pid: int | None = None) -> None:
    """Remove the file of process `pid` (default: this one)."""
    with contextlib.suppress(OSError):
        _file(os.getpid() if pid is None else pid).unlink(missing_ok=True)


def _file(pid: int) -> Path:
    return folder() / f"{pid}.json"


def _read(file: Path) -> CliContext | None:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        demo = CliContext(**{name: values[name] for name in CliContext.__dataclass_fields__ if name in values})
    except (OSError, ValueError, TypeError):
        return None
    return demo if isinstance(demo.redis_url, str) and isinstance(demo.pid, int) and demo.pid > 0 else None


def _start_ticks(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command name, in parentheses, may contain anything; the fields after the last one are plain.
    fields = text.rpartition(")")[2].split()
    # starttime is field 22; the first one after the parenthesis is field 3.
    return int(fields[19]) if len(fields) > 19 else None
