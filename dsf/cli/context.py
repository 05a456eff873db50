"""How a command in one terminal finds the demo that runs in another: a small file in the user's state folder.

`dsf demo` and `dsf up` write it when they are ready and remove it when they end. It may hold a Redis password, so it is
readable by its owner only. A file whose process is gone is ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Context:
    """A running set of processes. Folders are absolute paths; what is not running is None."""

    redis_url: str
    pid: int
    manifests: str | None = None
    out_dir: str | None = None
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
            # Somebody else's process: ours is gone and its number was given away.
            return False
        return self.started is None or self.started == _start_ticks(self.pid)


def path() -> Path:
    """Where the file is: `$XDG_STATE_HOME/dsf/context.json`, by default under `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "dsf" / "context.json"


def load() -> Context | None:
    """The running demo's context; None when there is none, its process is gone, or the file cannot be used."""
    try:
        values = json.loads(path().read_text(encoding="utf-8"))
        found = Context(**{name: values[name] for name in Context.__dataclass_fields__ if name in values})
    except (OSError, ValueError, TypeError):
        return None
    usable = isinstance(found.redis_url, str) and isinstance(found.pid, int) and found.pid > 0
    return found if usable and found.alive else None


def write(
    *,
    redis_url: str,
    manifests: Path | str | None = None,
    out_dir: Path | str | None = None,
    exporter_url: str | None = None,
    flower_url: str | None = None,
    host_aliases: Mapping[str, Mapping[str, str]] | None = None,
    pid: int | None = None,
) -> Path:
    """Tell other terminals of the set that the process `pid` (default: this one) runs. Returns the file.

    A second demo takes the place of the first. Raises OSError when the file cannot be written.
    """
    owner = os.getpid() if pid is None else pid
    context = Context(
        redis_url=redis_url,
        pid=owner,
        manifests=None if manifests is None else str(Path(manifests).resolve()),
        out_dir=None if out_dir is None else str(Path(out_dir).resolve()),
        exporter_url=exporter_url,
        flower_url=flower_url,
        host_aliases={cluster: dict(names) for cluster, names in (host_aliases or {}).items()},
        started=_start_ticks(owner),
    )
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # mkstemp makes it 0600 from the start.
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=".context-")
    with open(descriptor, "w", encoding="utf-8") as stream:
        json.dump(asdict(context), stream)
    Path(temporary).replace(file)
    return file


def remove(pid: int | None = None) -> None:
    """Take the file away if it is that of process `pid` (default: this one); another demo's file stays."""
    file = path()
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if json.loads(file.read_text(encoding="utf-8")).get("pid") == (os.getpid() if pid is None else pid):
            file.unlink()


def _start_ticks(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command name, in brackets, may hold anything; what follows the last bracket is plain.
    fields = text.rpartition(")")[2].split()
    # starttime is field 22; the first one after the bracket is field 3.
    return int(fields[19]) if len(fields) > 19 else None
