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
    .hub/                                   the hub's own: lock, master secret, and who holds which name

The file name of an object outside of the hub's namespace includes the namespace: `<namespace>_<name>.yaml`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from dsf.api import kubeyaml
from dsf.backends.files import Stamp, read_text, read_yaml, remove, stamp_of, write_text
from dsf.backends.protocol import Kind, Manifest, ObjectKey
from dsf.errors import BackendError, SettingsError
from dsf.keys import is_name
from dsf.settings import Settings

DEFAULT_NAME: Final = "_out"
CLUSTERS: Final = "clusters"
#: Folder of the hub's own files; it identifies an out folder.
PRIVATE: Final = ".hub"
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
_SUFFIX: Final = ".yaml"


class OutFolder:
    """Reads and writes objects. Methods raise BackendError when a file cannot be read or written."""

    def __init__(self, root: Path, namespace: str) -> None:
        """`namespace` is the hub's own, which is not in file names."""
        self.root = root
        self._namespace = namespace
        # Files in clusters' folders, as the hub knows them.
        self._delivered: dict[Path, Stamp | None] = {}

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The folder that the settings name. Raises SettingsError."""
        if settings.manifests is None:
            raise SettingsError("DSF_MANIFESTS: is required with DSF_BACKEND=dir: the folder with your manifests")
        manifests = settings.manifests.resolve()
        root = (settings.out_dir or manifests / DEFAULT_NAME).resolve()
        if root == manifests or root in manifests.parents:
            raise SettingsError(
                f"DSF_OUT_DIR: {root} is or contains the folder of manifests; choose one inside it or elsewhere"
            )
        return cls(root, settings.namespace)

    def path(self, key: ObjectKey) -> Path:
        """The file of an object."""
        kind, namespace, name = key
        for part in (namespace, name):
            if part and not is_name(part):
                raise BackendError(f"{part!r} cannot be the name of an object")
        if kind is Kind.WORK:
            return self.cluster(namespace) / f"{_WORK_PREFIX}{name}.yaml"
        if kind is Kind.SCORE:
            return self.cluster(namespace) / _SCORES / f"{name}.yaml"
        if kind not in _FOLDERS:
            raise BackendError(f"{kind} objects are not kept in a folder")
        prefix = f"{namespace}_" if namespace not in ("", self._namespace) else ""
        return self.root / _FOLDERS[kind] / f"{prefix}{name}.yaml"

    def cluster(self, name: str) -> Path:
        """The folder of one cluster."""
        if not is_name(name):
            raise BackendError(f"{name!r} cannot be the name of a cluster")
        return self.root / CLUSTERS / name

    def is_work(self, path: Path) -> bool:
        """Whether this file of a cluster's folder is a ManifestWork, not a delivered object."""
        return path.name.startswith(_WORK_PREFIX)

    def read(self, key: ObjectKey) -> Manifest | None:
        """One object, or None."""
        path = self.path(key)
        manifest = _manifest(read_yaml(path))
        if manifest is not None and key.kind is Kind.WORK:
            self._delivered.setdefault(path, stamp_of(path))
        return manifest

    def write(self, key: ObjectKey, manifest: Manifest) -> None:
        """Write one object."""
        write_text(self.path(key), kubeyaml.dump(manifest))

    def delete(self, key: ObjectKey) -> None:
        """Remove one object."""
        self.withdraw(self.path(key))

    def deliver(self, path: Path, text: str, *, mode: int = 0o644) -> None:
        """Make this the text of a file in a cluster's folder."""
        if read_text(path) != text:
            write_text(path, text, mode=mode)
        self._delivered[path] = stamp_of(path)

    def withdraw(self, path: Path) -> None:
        """Remove a file, and then its empty folders."""
        self._delivered.pop(path, None)
        remove(path, up_to=self.root)

    def edited_clusters(self) -> set[str]:
        """The clusters in whose folders somebody has changed or removed delivered files since the last call."""
        edited = [path for path, stamp in [*self._delivered.items()] if stamp_of(path) != stamp]
        for path in edited:
            self._delivered.pop(path, None)
        return {path.relative_to(self.root).parts[1] for path in edited}

    def all(self, kind: Kind) -> Iterator[Manifest]:
        """All objects of a kind that users write."""
        for path in sorted((self.root / _FOLDERS[kind]).glob("*.yaml")):
            manifest = _manifest(read_yaml(path))
            if manifest is not None and manifest.get("kind") == kind.value and self._is_in(path, manifest):
                if not isinstance(manifest.get("status", {}), dict):
                    del manifest["status"]
                yield manifest

    def _is_in(self, path: Path, manifest: Manifest) -> bool:
        """Whether this is the object's file; users may have changed its name or namespace."""
        try:
            return self.path(key_of(manifest)) == path
        except (BackendError, TypeError):
            return False

    def keys(self, kind: Kind) -> Iterator[ObjectKey]:
        """The keys of ManifestWorks or scores by their file names, without reading them."""
        prefix = _WORK_PREFIX if kind is Kind.WORK else ""
        for cluster in filter(is_name, _names(self.root / CLUSTERS)):
            folder = self.root / CLUSTERS / cluster
            for name in _names(folder / _SCORES if kind is Kind.SCORE else folder):
                # Not a copy or backup of a user's.
                if name.startswith(prefix) and name.endswith(_SUFFIX) and is_name(name[len(prefix) : -len(_SUFFIX)]):
                    yield ObjectKey(kind, cluster, name[len(prefix) : -len(_SUFFIX)])


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise BackendError(f"cannot read {folder}: {error.strerror}") from None


def _manifest(data: Any) -> Manifest | None:
    """`data` if it has the structure of an object; users may have edited the file."""
    is_object = isinstance(data, dict) and isinstance(data.get("metadata"), dict)
    return data if is_object and isinstance(data["metadata"].get("name"), str) else None


def key_of(manifest: Manifest) -> ObjectKey:
    """The key of a manifest."""
    metadata = manifest["metadata"]
    return ObjectKey(Kind(manifest["kind"]), metadata.get("namespace") or "", metadata["name"])


#: Annotation of an object in the out folder: its source file, relative to the folder of manifests.
FILE_ANNOTATION: Final = "dynamic-scoring.open-cluster-management.io/manifest"


def origin(manifest: Manifest) -> str | None:
    """The source file of an object."""
    annotations = manifest["metadata"].get("annotations")
    file = annotations.get(FILE_ANNOTATION) if isinstance(annotations, dict) else None
    return file if isinstance(file, str) else None


def now() -> str:
    """The creation time. Kubernetes has whole seconds; the fraction orders objects of one second."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def generation(metadata: Manifest) -> int:
    """Number of spec versions, from 1; 0 if missing because the file was edited."""
    number = metadata.get("generation")
    return number if isinstance(number, int) else 0


def as_written(manifest: Manifest) -> Manifest:
    """An object as in its source file: without status and this backend's additions to the metadata."""
    metadata = {name: value for name, value in manifest["metadata"].items() if name in ("name", "namespace", "labels")}
    annotations = {
        name: value
        for name, value in (manifest["metadata"].get("annotations") or {}).items()
        if name != FILE_ANNOTATION
    }
    if annotations:
        metadata["annotations"] = annotations
    return {**{name: value for name, value in manifest.items() if name != "status"}, "metadata": metadata}


def merged(before: Manifest, manifest: Manifest) -> Manifest:
    """`before` updated with `manifest`: mappings are merged, everything else is replaced."""
    result = dict(before)
    for name, value in manifest.items():
        old = result.get(name)
        result[name] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else deepcopy(value)
    return result


class FolderLock:
    """One hub's lock of the folder, since two would undo each other's work.

    Held until `release` or any end of the process.
    """

    def __init__(self, root: Path) -> None:
        """Raises BackendError when another process holds the folder or it cannot be written."""
        path = root / PRIVATE / "lock"
        try:
            # For its owner only: the master secret is in the same folder.
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise BackendError(f"cannot write into {root}: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise BackendError(f"another hub works on {root}; stop it, or choose another DSF_OUT_DIR") from None

    def release(self) -> None:
        """Release the lock."""
        self._file.close()
