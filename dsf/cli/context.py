"""Running demos: one file for each in the user's state folder, by which commands in other terminals find it.

`dsf demo` and `dsf up` write the file when they are ready, hold a lock on it while they run, and remove it when they
end. The file may contain a Redis password, so only its owner can read it. Files without a lock, which the system takes
from a process that is killed, are ignored, and the next demo removes them.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dsf.errors import ContextError

#: Value of `--demo`.
_wanted: str | None = None


def want(name_or_folder: str | None) -> None:
    """Store the value of `--demo`. Every command with the option calls it, so that none inherits another's."""
    global _wanted  # noqa: PLW0603
    _wanted = name_or_folder


def wanted() -> str | None:
    """Value of `--demo`."""
    return _wanted


@dataclass(frozen=True)
class KubeChoice:
    """Options of a command that choose an API server."""

    kubeconfig: Path | None = None
    context: str | None = None
    #: Namespace of the DynamicScorer.
    namespace: str | None = None


_kube_choice = KubeChoice()


def kube_choice() -> KubeChoice:
    """Return the values of `--kubeconfig`, `--context` and `--namespace`."""
    return _kube_choice


def choose_kubeconfig(kubeconfig: Path | None) -> None:
    """Store the value of `--kubeconfig`, as `want` does."""
    _choose(kubeconfig=kubeconfig)


def choose_kube_context(context: str | None) -> None:
    """Store the value of `--context`, as `want` does."""
    _choose(context=context)


def choose_namespace(namespace: str | None) -> None:
    """Store the value of `--namespace`, as `want` does."""
    _choose(namespace=namespace)


def _choose(**value: Any) -> None:
    global _kube_choice  # noqa: PLW0603
    _kube_choice = replace(_kube_choice, **value)


def default_kubeconfig() -> Path | None:
    """Return kubectl's files: those of KUBECONFIG, else `~/.kube/config` if it exists."""
    # Like kubectl, which takes no default if KUBECONFIG names files that do not exist: it may be another cluster's.
    if kubeconfig_paths := os.environ.get("KUBECONFIG"):
        return Path(kubeconfig_paths)
    default = Path.home() / ".kube" / "config"
    return default if default.is_file() else None


@dataclass(frozen=True)
class CliContext:
    """A running set of processes. Folders are absolute paths; None stands for a process that does not run."""

    redis_url: str
    #: Name for `--demo`; two demos may share a name, but not a folder of manifests.
    name: str = "demo"
    #: Working directory at startup.
    started_in: str | None = None
    manifests: str | None = None
    out_dir: str | None = None
    #: Cluster -> `DSF_AGENT_HOST_ALIASES` of its agent, for `dsf explain`.
    host_aliases: dict[str, dict[str, str]] = field(default_factory=dict)

    def covers(self, folder: Path) -> bool:
        """True if `folder` (absolute) is the start folder of this context, or in its folder of manifests."""
        inside = self.manifests is not None and folder.is_relative_to(self.manifests)
        return inside or str(folder) == self.started_in

    def is_called(self, name_or_folder: str) -> bool:
        """True if `--demo` selects this one: by its name, or by a folder that it covers."""
        return name_or_folder == self.name or self.covers(Path(name_or_folder).resolve())

    def __str__(self) -> str:
        return f"{self.name} ({self.manifests or self.started_in})"


def folder() -> Path:
    """Folder of the files: `$XDG_STATE_HOME/dsf/contexts`, by default under `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "dsf" / "contexts"


def running() -> list[CliContext]:
    """Return all running demos, sorted by name. Unusable files are ignored."""
    read = (_read(file) for file in folder().glob("*.json"))
    return sorted((demo for demo in read if demo is not None), key=str)


def choose(name_or_folder: str | None = None) -> CliContext | None:
    """Return the running demo that `name_or_folder` selects: by name, folder of manifests or start folder.

    Without it, the only running demo, or the one to which the current folder belongs; None if none runs. Raises
    ContextError, which lists the running demos, if the selection is ambiguous.
    """
    demos = running()
    demo_names = ", ".join(str(demo) for demo in demos) or "none"
    if name_or_folder is not None:
        matching_demos = [demo for demo in demos if demo.is_called(name_or_folder)]
        if not matching_demos:
            raise ContextError(f"no demo {name_or_folder!r} runs; running: {demo_names}")
    elif len(demos) <= 1:
        matching_demos = demos
    else:
        matching_demos = [demo for demo in demos if demo.covers(Path.cwd())]
    if len(matching_demos) > 1 or (demos and not matching_demos):
        raise ContextError(f"{len(demos)} demos run: {demo_names}; select one with --demo NAME or FOLDER")
    return matching_demos[0] if matching_demos else None


@contextmanager
def published(
    *,
    redis_url: str,
    name: str = "demo",
    manifests: Path | str | None = None,
    out_dir: Path | str | None = None,
    host_aliases: Mapping[str, Mapping[str, str]] | None = None,
) -> Iterator[Path]:
    """Publish this process's set to other terminals in the block. Yields the file.

    Raises OSError when the file cannot be written.
    """
    context = CliContext(
        redis_url=redis_url,
        name=name,
        started_in=str(Path.cwd()),
        manifests=None if manifests is None else str(Path(manifests).resolve()),
        out_dir=None if out_dir is None else str(Path(out_dir).resolve()),
        host_aliases={cluster: dict(names) for cluster, names in (host_aliases or {}).items()},
    )
    where = folder()
    where.mkdir(parents=True, exist_ok=True, mode=0o700)
    for other in where.glob("*.json"):
        if not _is_held(other):
            other.unlink(missing_ok=True)
    # mkstemp creates it with mode 0600; it gets its name when it is locked and whole.
    descriptor, temporary = tempfile.mkstemp(dir=where, prefix=".context-")
    file = Path(temporary)
    try:
        with open(descriptor, "w", encoding="utf-8") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX)
            except OSError as error:
                raise OSError(error.errno, f"no lock on a file: {error.strerror}") from None
            json.dump(asdict(context), stream)
            stream.flush()
            file = file.rename(where / f"{file.name[1:]}.json")
            yield file
    finally:
        with suppress(OSError):
            file.unlink()


def _read(file: Path) -> CliContext | None:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        demo = CliContext(**{name: values[name] for name in CliContext.__dataclass_fields__ if name in values})
    except (OSError, ValueError, TypeError):
        return None
    return demo if isinstance(demo.redis_url, str) and _is_held(file) else None


def _is_held(file: Path) -> bool:
    """True if its process still runs."""
    try:
        with file.open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
