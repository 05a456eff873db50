"""The output folder of the `dir` backend: the file of each object.

    dynamicscorers/<name>.yaml              DynamicScorer with its status
    dynamicscoringconfigs/<name>.yaml       DynamicScoringConfig with its status
    scoringauthentications/<name>.yaml      ScoringAuthentication
    managedclusters/<name>.yaml             ManagedCluster
    clusters/<cluster>/manifestwork-<name>.yaml
    clusters/<cluster>/<configmap>.yaml     delivered by the ManifestWork
    clusters/<cluster>/addonplacementscores/<name>.yaml
    clusters/<cluster>/agent-credentials/   the agent's credentials
    problems.yaml, events.yaml              for users
    .hub/                                   the hub's own files: lock, master secret and name claims

The file name of an object outside of the hub's namespace contains the namespace: `<namespace>_<name>.yaml`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self, TextIO

import yaml

import dsf.log
from dsf.api import kubeyaml
from dsf.backends.protocol import Kind, Manifest, ObjectKey
from dsf.backends.scorestate import ScoreState, explain_foreign_object, is_ours, read_score_state
from dsf.errors import BackendError, ForeignObjectError, ObjectNotFoundError, SettingsError
from dsf.keys import is_name
from dsf.settings import Settings

log = dsf.log.get(__name__)

#: Name of the output folder in the folder of manifests, if no setting names one.
DEFAULT_NAME: Final = "_out"
#: Folder of the hub's own files, by which an output folder is recognized.
PRIVATE: Final = ".hub"
_CLUSTERS: Final = "clusters"
_FOLDERS: Final = {
    Kind.SCORER: "dynamicscorers",
    Kind.CONFIG: "dynamicscoringconfigs",
    Kind.AUTHENTICATION: "scoringauthentications",
    Kind.CLUSTER: "managedclusters",
}
#: Kinds that users write.
INPUT_KINDS: Final = tuple(_FOLDERS)
_WORK_PREFIX: Final = "manifestwork-"
_SCORES: Final = "addonplacementscores"

#: Modification time (unix seconds), size and inode of a file; None without a file.
_Stamp = tuple[float, int, int] | None


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write `text` to `path` atomically, so that readers see the old or the new content. Creates missing folders.

    Raises BackendError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".tmp")
        try:
            with open(handle, "wb") as file:
                file.write(text.encode())
                os.fchmod(handle, mode)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise BackendError(f"cannot write {path}: {error.strerror}; check permissions and free space") from None


def read_text(path: Path) -> str | None:
    """Return the content of a file; None if the file does not exist. Raises BackendError if it cannot be read."""
    try:
        # Escape invalid UTF-8, which only a user can have written.
        return path.read_text(encoding="utf-8", errors="backslashreplace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BackendError(f"cannot read {path}: {error.strerror}") from None


def read_yaml(path: Path) -> Any:
    """Return the data in a file of the output folder; None if the file does not exist or is not valid YAML.

    Raises BackendError if the file exists and cannot be read.
    """
    text = read_text(path)
    try:
        # Apply no limits of users' manifests, because the hub's own objects may be larger.
        return None if text is None else yaml.load(text, Loader=kubeyaml.Loader)  # noqa: S506 (a safe loader)
    except (yaml.YAMLError, ValueError, LookupError, RecursionError):
        return None


def remove(path: Path, *, up_to: Path) -> None:
    """Remove a file, if it exists, and then its empty parent folders below `up_to`. Raises BackendError."""
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise BackendError(f"cannot remove {path}: {error.strerror}") from None
    for folder in path.parents:
        if folder == up_to or up_to not in folder.parents:
            break
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            break


class OutFolder:
    """The output folder. Methods raise BackendError if a file cannot be read or written. Thread-safe."""

    def __init__(self, root: Path, namespace: str) -> None:
        """Use the folder `root`. File names omit `namespace`, the hub's own namespace."""
        self.root = root
        self._namespace = namespace
        self._lock = threading.Lock()
        # Text and mode of each file that this process has written.
        self._written_files: dict[Path, tuple[str, int]] = {}

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the output folder in the settings. Raises SettingsError."""
        if settings.manifests is None:
            raise SettingsError("DSF_MANIFESTS: is required with DSF_BACKEND=dir: the folder with your manifests")
        manifests = settings.manifests.resolve()
        root = (settings.out_dir or manifests / DEFAULT_NAME).resolve()
        if root == manifests or root in manifests.parents:
            raise SettingsError(
                f"DSF_OUT_DIR: {root} is or contains the folder of manifests; choose one inside it or elsewhere"
            )
        return cls(root, settings.namespace)

    def get_path(self, key: ObjectKey) -> Path:
        """Return the path of an object's file. Raises BackendError for invalid names and kinds without files."""
        kind, namespace, name = key
        for part in (namespace, name):
            if part and not is_name(part):
                raise BackendError(f"{part!r} cannot be the name of an object")
        if kind is Kind.WORK:
            return self.get_cluster_folder(namespace) / f"{_WORK_PREFIX}{name}.yaml"
        if kind is Kind.SCORE:
            return self.get_cluster_folder(namespace) / _SCORES / f"{name}.yaml"
        if kind not in _FOLDERS:
            raise BackendError(f"{kind} objects are not kept in a folder")
        prefix = f"{namespace}_" if namespace not in ("", self._namespace) else ""
        return self.root / _FOLDERS[kind] / f"{prefix}{name}.yaml"

    def get_cluster_folder(self, name: str) -> Path:
        """Return the path of a cluster's folder. Raises BackendError for an invalid name."""
        if not is_name(name):
            raise BackendError(f"{name!r} cannot be the name of a cluster")
        return self.root / _CLUSTERS / name

    def put(self, path: Path, text: str, *, mode: int = 0o644) -> None:
        """Write a file. `repair` writes it again if this write fails, or if a user changes the file later."""
        with self._lock:
            self._written_files[path] = text, mode
            if read_text(path) != text:
                write_text(path, text, mode=mode)

    def remove(self, path: Path) -> None:
        """Remove a file and its empty parent folders."""
        with self._lock:
            self._written_files.pop(path, None)
            remove(path, up_to=self.root)

    def repair(self) -> None:
        """Rewrite the files that users have changed or removed, like OCM's work agent on a cluster."""
        for path in [*self._written_files]:
            with self._lock:
                text, mode = self._written_files.get(path, ("", 0))
                if mode and read_text(path) != text:
                    write_text(path, text, mode=mode)

    def lock(self) -> TextIO:
        """Lock the folder until the returned file is closed, because two hubs would overwrite each other's files.

        Raises BackendError if another process holds the lock, or the lock file cannot be written.
        """
        path = self.root / PRIVATE / "lock"
        try:
            # Only the owner may read the folder, because it also contains the master secret.
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise BackendError(f"cannot write into {self.root}: {error.strerror}") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise BackendError(f"another hub works on {self.root}; stop it, or choose another DSF_OUT_DIR") from None
        return file

    def read(self, key: ObjectKey) -> Manifest | None:
        """Return an object; None if its file does not exist, or contains another object after a copy or rename."""
        path = self.get_path(key)
        manifest = _parse_manifest(read_yaml(path))
        return manifest if manifest is not None and self._is_in(path, manifest) else None

    def list_score_keys(self) -> list[ObjectKey]:
        """Return the keys of all AddOnPlacementScores by their file names, without reading the files."""
        keys = (ObjectKey(Kind.SCORE, path.parent.parent.name, path.stem) for path in self._list_files(Kind.SCORE))
        return [key for key in keys if is_name(key.namespace) and is_name(key.name)]

    def iter_objects(self, kind: Kind) -> Iterator[Manifest]:
        """Yield the objects of a kind, without files that users copied or renamed."""
        for path in self._list_files(kind):
            try:
                manifest = _parse_manifest(read_yaml(path))
            except BackendError as error:
                log.warning("object skipped, its file cannot be read", error=str(error))
                continue
            if manifest is not None and self._is_in(path, manifest):
                if not isinstance(manifest.get("status", {}), dict):
                    del manifest["status"]
                yield manifest

    def _list_files(self, kind: Kind) -> list[Path]:
        folders = _FOLDERS | {Kind.WORK: f"{_CLUSTERS}/*", Kind.SCORE: f"{_CLUSTERS}/*/{_SCORES}"}
        return sorted(self.root.glob(f"{folders[kind]}/*.yaml"))

    def _is_in(self, path: Path, manifest: Manifest) -> bool:
        """True if `path` is the path of the object in `manifest`."""
        try:
            return self.get_path(ObjectKey.from_manifest(manifest)) == path
        except (BackendError, KeyError, TypeError, ValueError):
            return False


class DirectoryScores:
    """Implementation of `dsf.backends.protocol.ScoreBackend` on the output folder. Thread-safe."""

    def __init__(self, out: OutFolder) -> None:
        self._out = out
        self._scores_lock = threading.Lock()
        # State of each score of the framework, and the stamp of its file when it was read or written.
        self._states: dict[ObjectKey, tuple[ScoreState, _Stamp]] = {}

    def find_score(self, namespace: str, name: str) -> ScoreState | None:
        """See `ScoreBackend.find_score`."""
        with self._scores_lock:
            state, _ = self._states.get(ObjectKey(Kind.SCORE, namespace, name), (None, None))
        return state

    def apply_score(self, manifest: Manifest, status: Manifest) -> ScoreState:
        """See `ScoreBackend.apply_score`."""
        key = ObjectKey.from_manifest(manifest)
        path = self._out.get_path(key)
        if not self._out.get_path(ObjectKey(Kind.CLUSTER, "", key.namespace)).exists():
            # Fail as on Kubernetes, where the cluster's namespace would be missing.
            raise ObjectNotFoundError(f"cluster {key.namespace!r} is not there (any more)")
        with self._scores_lock:
            stored_score = self._out.read(key)
            if stored_score is not None and not is_ours(stored_score):
                raise ForeignObjectError(explain_foreign_object(key.namespace, key.name))
            stored_metadata = (stored_score or {}).get("metadata", {})
            identity_fields = {
                name: stored_metadata[name] for name in ("uid", "creationTimestamp") if name in stored_metadata
            } or make_identity()
            score = {**manifest, "metadata": {**manifest["metadata"], **identity_fields}, "status": status}
            write_text(path, kubeyaml.dump(score))
            state = read_score_state(score, written_at=time.time())
            self._states[key] = state, _read_stamp(path)
            return state

    def adopt_scores(self, plan_adoption: Callable[[str, str, float], tuple[Manifest, datetime] | None]) -> int:
        """See `ScoreBackend.adopt_scores`. Returns 0, because the original project has no folders."""
        del plan_adoption
        return 0

    def delete_score(self, namespace: str, name: str) -> None:
        """See `ScoreBackend.delete_score`."""
        key = ObjectKey(Kind.SCORE, namespace, name)
        with self._scores_lock:
            self._states.pop(key, None)
            stored_score = self._out.read(key)
            if stored_score is None or is_ours(stored_score):
                self._out.remove(self._out.get_path(key))

    def refresh_scores(self) -> list[ObjectKey]:
        """Read the score files that users have changed, added or removed, and return the keys of these scores."""
        changed_keys: list[ObjectKey] = []
        with self._scores_lock:
            stamps = {key: stamp for key, (_, stamp) in self._states.items()}
        # Compare the stamps of all files without the lock, so that writes of scores do not wait.
        keys = {*stamps, *self._out.list_score_keys()}
        candidate_keys = [key for key in keys if _read_stamp(self._out.get_path(key)) != stamps.get(key)]
        for key in candidate_keys:
            with self._scores_lock:
                path = self._out.get_path(key)
                state, stamp = self._states.get(key, (None, None))
                current_stamp = _read_stamp(path)
                if stamp == current_stamp:
                    continue
                stored_score = self._out.read(key)
                if stored_score is not None and is_ours(stored_score):
                    written_at = current_stamp[0] if current_stamp else 0.0
                    self._states[key] = read_score_state(stored_score, written_at=written_at), current_stamp
                    changed_keys.append(key)
                else:
                    self._states.pop(key, None)
                    if state is not None:
                        changed_keys.append(key)
        return changed_keys


def _read_stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime, status.st_size, status.st_ino


def _parse_manifest(data: Any) -> Manifest | None:
    """Return `data` if it has the structure of an object, else None, because users may have edited the file."""
    is_object = isinstance(data, dict) and isinstance(data.get("metadata"), dict)
    return data if is_object and isinstance(data["metadata"].get("name"), str) else None


def make_identity() -> Manifest:
    """Return the metadata that the API server gives to a new object."""
    # The API server uses whole seconds; here the milliseconds order objects that are created within a second.
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"uid": str(uuid.uuid4()), "creationTimestamp": now}
