"""Finds running demos, and stores the options that select a hub.

Each demo has a file in the user's state folder, by which commands in other terminals find it. `dsf demo` and `dsf up`
write the file when they are ready, lock it while they run, and remove it when they end. Only the owner can read the
file, because it may contain a Redis password. The system releases the lock of a killed process. Commands ignore files
without a lock, and the next demo removes them.
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
_demo_selection: str | None = None


def select_demo(name_or_folder: str | None) -> None:
    """Store the value of `--demo`; None without the option. Each command calls this, which resets an earlier value."""
    global _demo_selection  # noqa: PLW0603
    _demo_selection = name_or_folder


def get_selected_demo() -> str | None:
    """Return the value of `--demo`."""
    return _demo_selection


@dataclass(frozen=True)
class KubeChoice:
    """The options of a command that select an API server."""

    kubeconfig: Path | None = None
    context: str | None = None
    #: Namespace of the DynamicScorer; None for any.
    namespace: str | None = None
    #: True with `--all-namespaces`, which is also the default.
    all_namespaces: bool = False


_kube_choice = KubeChoice()


def get_kube_choice() -> KubeChoice:
    """Return the values of `--kubeconfig`, `--context`, `--namespace` and `--all-namespaces`.

    Raises ContextError if the options name both one namespace and all of them.
    """
    if _kube_choice.namespace is not None and _kube_choice.all_namespaces:
        raise ContextError("--namespace and --all-namespaces exclude each other")
    return _kube_choice


def choose_kubeconfig(kubeconfig: Path | None) -> None:
    """Store the value of `--kubeconfig`, as `select_demo` does."""
    _replace_kube_choice(kubeconfig=kubeconfig)


def choose_kube_context(context: str | None) -> None:
    """Store the value of `--context`, as `select_demo` does."""
    _replace_kube_choice(context=context)


def choose_namespace(namespace: str | None) -> None:
    """Store the value of `--namespace`, as `select_demo` does."""
    _replace_kube_choice(namespace=namespace)


def choose_all_namespaces(all_namespaces: bool) -> None:
    """Store the value of `--all-namespaces`, as `select_demo` does."""
    _replace_kube_choice(all_namespaces=all_namespaces)


def _replace_kube_choice(**value: Any) -> None:
    global _kube_choice  # noqa: PLW0603
    _kube_choice = replace(_kube_choice, **value)


def find_default_kubeconfig() -> Path | None:
    """Return the path list of KUBECONFIG, else `~/.kube/config` if the file exists, else None."""
    # Like kubectl, ignore the default file if KUBECONFIG is set, also to missing files: the default may be for another
    # cluster.
    if kubeconfig_paths := os.environ.get("KUBECONFIG"):
        return Path(kubeconfig_paths)
    default = Path.home() / ".kube" / "config"
    return default if default.is_file() else None


@dataclass(frozen=True)
class RunningDemo:
    """A running demo. Folders are absolute paths, or None if the demo does not run the process that uses the folder."""

    redis_url: str
    #: Name for `--demo`. Demos may share a name, but not a folder of manifests.
    name: str = "demo"
    #: Working directory at startup.
    started_in: str | None = None
    manifests: str | None = None
    out_dir: str | None = None
    #: Cluster -> `DSF_AGENT_HOST_ALIASES` of the cluster's agent, for `dsf explain`.
    host_aliases: dict[str, dict[str, str]] = field(default_factory=dict)

    def covers(self, folder: Path) -> bool:
        """True if `folder` (absolute) is this demo's working directory, or is in its folder of manifests."""
        is_in_manifests = self.manifests is not None and folder.is_relative_to(self.manifests)
        return is_in_manifests or str(folder) == self.started_in

    def is_called(self, name_or_folder: str) -> bool:
        """True if `--demo` selects this demo by its name, or by a folder that it covers."""
        return name_or_folder == self.name or self.covers(Path(name_or_folder).resolve())

    def __str__(self) -> str:
        return f"{self.name} ({self.manifests or self.started_in})"


def get_folder() -> Path:
    """Return the folder with the files of demos: `$XDG_STATE_HOME/dsf/contexts`, by default in `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "dsf" / "contexts"


def list_running() -> list[RunningDemo]:
    """Return all running demos, sorted by name. Invalid files are ignored."""
    demos = (_read_context(file) for file in get_folder().glob("*.json"))
    return sorted((demo for demo in demos if demo is not None), key=str)


def choose_demo(name_or_folder: str | None = None) -> RunningDemo | None:
    """Return the running demo that `name_or_folder` selects by name, folder of manifests or working directory.

    Without `name_or_folder`, return the only running demo, or the demo that covers the current folder; None if no demo
    runs. Raises ContextError, which lists the running demos, if no demo or several demos match.
    """
    demos = list_running()
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
def publish_demo(
    *,
    redis_url: str,
    name: str = "demo",
    manifests: Path | str | None = None,
    out_dir: Path | str | None = None,
    host_aliases: Mapping[str, Mapping[str, str]] | None = None,
) -> Iterator[Path]:
    """Write the file of this demo, which exists during the block, and yield its path.

    Raises OSError if the file cannot be written or locked.
    """
    context = RunningDemo(
        redis_url=redis_url,
        name=name,
        started_in=str(Path.cwd()),
        manifests=None if manifests is None else str(Path(manifests).resolve()),
        out_dir=None if out_dir is None else str(Path(out_dir).resolve()),
        host_aliases={cluster: dict(names) for cluster, names in (host_aliases or {}).items()},
    )
    folder = get_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for other_file in folder.glob("*.json"):
        if not _is_locked(other_file):
            other_file.unlink(missing_ok=True)
    # Create the file with mode 0600, and rename it after it is locked and complete.
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".context-")
    file = Path(temporary)
    try:
        with open(descriptor, "w", encoding="utf-8") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX)
            except OSError as error:
                raise OSError(error.errno, f"no lock on a file: {error.strerror}") from None
            json.dump(asdict(context), stream)
            stream.flush()
            file = file.rename(folder / f"{file.name[1:]}.json")
            yield file
    finally:
        with suppress(OSError):
            file.unlink()


def _read_context(file: Path) -> RunningDemo | None:
    """Return the demo that the file describes; None if the file is invalid or the demo no longer runs."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        demo = RunningDemo(**{name: values[name] for name in RunningDemo.__dataclass_fields__ if name in values})
    except (OSError, ValueError, TypeError):
        return None
    return demo if isinstance(demo.redis_url, str) and _is_locked(file) else None


def _is_locked(file: Path) -> bool:
    """True if a process holds the lock on the file, which means that its demo runs."""
    try:
        with file.open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
