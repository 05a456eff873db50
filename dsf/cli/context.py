"""How commands in one terminal find the demos that run in others: a small file for each in the user's state folder.

`dsf demo` and `dsf up` write theirs when they are ready and remove it when they end. It may hold a Redis password, so
it is readable by its owner only. A file whose process is gone is ignored, and removed by the next demo.
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

#: What `--context` said.
_wanted: str | None = None


def want(name_or_folder: str | None) -> None:
    """Remember what `--context` said. Called for every command that has the option: none inherits another one's."""
    global _wanted  # noqa: PLW0603
    _wanted = name_or_folder


def wanted() -> str | None:
    """What `--context` said."""
    return _wanted


@dataclass(frozen=True)
class Context:
    """A running set of processes. Folders are absolute paths; what is not running is None."""

    redis_url: str
    pid: int
    #: What `--context` calls it; two demos may have one name, but not one folder of manifests.
    name: str = "demo"
    #: The folder in which it was started.
    started_in: str | None = None
    manifests: str | None = None
    out_dir: str | None = None
    web_url: str | None = None
    exporter_url: str | None = None
    flower_url: str | None = None
    #: Cluster -> `DSF_AGENT_HOST_ALIASES` of its agent, for `dsf explain`.
    host_aliases: dict[str, dict[str, str]] = field(default_factory=dict)
    #: When the process started, in the kernel's clock ticks; tells a process from a later one with its number.
    started: int | None = None

    @property
    def alive(self) -> bool:
        """Whether the process that wrote this still runs."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            # Another user's process: ours is gone and its number was given away.
            return False
        return self.started is None or self.started == _start_ticks(self.pid)

    def covers(self, folder: Path) -> bool:
        """Whether `folder` (absolute) is where this was started, or in its folder of manifests."""
        inside = self.manifests is not None and folder.is_relative_to(self.manifests)
        return inside or str(folder) == self.started_in

    def is_called(self, wanted: str) -> bool:
        """Whether `--context` means this one: by its name, or by a folder that it covers."""
        return wanted == self.name or self.covers(Path(wanted).resolve())

    def __str__(self) -> str:
        return f"{self.name} ({self.manifests or self.started_in or self.pid})"


def folder() -> Path:
    """Where the files are: `$XDG_STATE_HOME/dsf/contexts`, by default under `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "dsf" / "contexts"


def running() -> list[Context]:
    """Every demo that runs, sorted by name. Files that cannot be used are left out."""
    read = (_read(file) for file in folder().glob("*.json"))
    return sorted((one for one in read if one is not None and one.alive), key=str)


def choose(wanted: str | None = None) -> Context | None:
    """The running demo that is `wanted`: a name, or a folder of its manifests or in which it was started.

    Without a wish the only one that runs, or of several the one to which the current folder belongs; None when none
    runs. Raises ContextError, which names those that run, when this does not tell which one is meant.
    """
    found = running()
    listed = ", ".join(str(one) for one in found) or "none"
    if wanted is not None:
        fitting = [one for one in found if one.is_called(wanted)]
        if not fitting:
            raise ContextError(f"no demo {wanted!r} runs; running: {listed}")
    elif len(found) <= 1:
        fitting = found
    else:
        fitting = [one for one in found if one.covers(Path.cwd())]
    if len(fitting) > 1 or (found and not fitting):
        raise ContextError(f"{len(found)} demos run: {listed}; say which one with --context NAME or FOLDER")
    return fitting[0] if fitting else None


def write(
    *,
    redis_url: str,
    name: str = "demo",
    manifests: Path | str | None = None,
    out_dir: Path | str | None = None,
    web_url: str | None = None,
    exporter_url: str | None = None,
    flower_url: str | None = None,
    host_aliases: Mapping[str, Mapping[str, str]] | None = None,
    pid: int | None = None,
) -> Path:
    """Tell other terminals of the set that the process `pid` (default: this one) runs. Returns the file.

    Raises OSError when the file cannot be written.
    """
    owner = os.getpid() if pid is None else pid
    context = Context(
        redis_url=redis_url,
        pid=owner,
        name=name,
        started_in=str(Path.cwd()),
        manifests=None if manifests is None else str(Path(manifests).resolve()),
        out_dir=None if out_dir is None else str(Path(out_dir).resolve()),
        web_url=web_url,
        exporter_url=exporter_url,
        flower_url=flower_url,
        host_aliases={cluster: dict(names) for cluster, names in (host_aliases or {}).items()},
        started=_start_ticks(owner),
    )
    file = _file(owner)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for other in file.parent.glob("*.json"):
        if (left := _read(other)) is not None and not left.alive:
            other.unlink(missing_ok=True)
    # mkstemp makes it 0600 from the start.
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".context-")
    with open(descriptor, "w", encoding="utf-8") as stream:
        json.dump(asdict(context), stream)
    Path(temporary).replace(file)
    return file


def remove(pid: int | None = None) -> None:
    """Take away the file of process `pid` (default: this one); those of other demos stay."""
    with contextlib.suppress(OSError):
        _file(os.getpid() if pid is None else pid).unlink(missing_ok=True)


def _file(pid: int) -> Path:
    return folder() / f"{pid}.json"


def _read(file: Path) -> Context | None:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        found = Context(**{name: values[name] for name in Context.__dataclass_fields__ if name in values})
    except (OSError, ValueError, TypeError):
        return None
    return found if isinstance(found.redis_url, str) and isinstance(found.pid, int) and found.pid > 0 else None


def _start_ticks(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command name, in brackets, may hold anything; what follows the last bracket is plain.
    fields = text.rpartition(")")[2].split()
    # starttime is field 22; the first one after the bracket is field 3.
    return int(fields[19]) if len(fields) > 19 else None
