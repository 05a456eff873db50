"""Reads the users' folder of manifests: the objects in force, and the problems of the files.

The valid documents of a file with errors are in force. So are earlier objects that the file no longer contains, so that
an incomplete file removes nothing. Deleting a file removes its objects after a second. The objects of an empty file or
folder stay in force for a longer grace period, because an editor or a mount may have failed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dsf.api.cluster import ManagedCluster
from dsf.api.manifest import ApiObject, ManifestProblem, ParsedDocument, parse_documents
from dsf.backends.outfolder import PRIVATE
from dsf.backends.protocol import Manifest, ObjectKey

#: Maximum size of a manifest file in bytes.
MAX_BYTES: Final = 4 * 1024 * 1024

#: Seconds for which the objects of a missing file stay in force, because editors may remove a file to write it again.
MISSING_FILE_SECONDS: Final = 1.0


@dataclass(frozen=True)
class DeclaredObject:
    """An object as in its file, without status, and with the metadata that users may set."""

    manifest: Manifest
    #: Name of the file, relative to the folder.
    file: str
    line: int = field(compare=False)


#: Content of a file, or the reason why the file cannot be read.
_Content = bytes | ManifestProblem


@dataclass
class _File:
    """State of a file."""

    content: _Content | None = None
    #: Monotonic time at which the file was first found missing or empty; None if it has content.
    missing_since: float | None = None
    #: True if the file or its folder is empty, which is probably unintended.
    is_suspicious: bool = False
    objects: dict[ObjectKey, DeclaredObject] = field(default_factory=dict)
    problems: list[ManifestProblem] = field(default_factory=list)


@dataclass
class _Listing:
    """Content of the folder. Names are relative to the folder."""

    files: dict[str, _Content] = field(default_factory=dict)
    #: Empty folders (`name/`), such as the mount point of a share.
    empty_folders: list[str] = field(default_factory=list)
    #: Folders (`name/`) that cannot be listed.
    unreadable_folders: list[str] = field(default_factory=list)
    problems: list[ManifestProblem] = field(default_factory=list)


class ManifestFolder:
    """Reads the folder. Reports unreadable content as problems and raises no exception for it.

    Instances are not thread-safe.
    """

    def __init__(
        self, root: Path, ignored_folder: Path, namespace: str, *, grace: float = MISSING_FILE_SECONDS
    ) -> None:
        """Prepare to read `root`, except for the folder `ignored_folder` in it.

        `namespace` is the default namespace of objects, `grace` the seconds for which the objects of an empty file or
        folder stay in force.
        """
        self._root = root
        self._ignored_folder = ignored_folder
        self._namespace = namespace
        self._grace = max(grace, MISSING_FILE_SECONDS)
        self._files: dict[str, _File] = {}
        #: Objects in force.
        self.objects: dict[ObjectKey, DeclaredObject] = {}
        #: Problems by file and line.
        self.problems: list[ManifestProblem] = []

    def restore(self, objects: Mapping[ObjectKey, DeclaredObject]) -> None:
        """Restore the objects that were in force when the hub stopped. Objects of files with errors stay in force."""
        self.objects = dict(objects)
        for key, declared_object in objects.items():
            self._files.setdefault(declared_object.file, _File()).objects[key] = declared_object

    def refresh(self, *, grace: float = MISSING_FILE_SECONDS) -> list[ObjectKey]:
        """Read the folder, and return the keys of changed objects.

        Removes the objects of files that have been missing for `grace` seconds, and those of empty files and folders
        after the grace period of the constructor. The objects of a folder that cannot be listed stay in force.
        """
        try:
            listing = self._list()
        except OSError as error:
            # Keep all objects, because an unmounted share must not end all scoring.
            text = f"the folder {self._root} cannot be read ({error.strerror}); nothing is changed until it can"
            self.problems = [ManifestProblem(self._root.name, 0, "", text)]
            return []
        for name, content in listing.files.items():
            file = self._files.setdefault(name, _File())
            if content == b"" and file.objects:
                continue
            file.missing_since, file.is_suspicious = None, False
            if content != file.content:
                file.content = content
                self._apply_file(name, file)
        now = time.monotonic()
        for name, file in [*self._files.items()]:
            is_emptied = listing.files.get(name) == b"" and file.objects
            if (name in listing.files and not is_emptied) or name.startswith(tuple(listing.unreadable_folders)):
                continue
            file.missing_since = file.missing_since or now
            file.is_suspicious = bool(is_emptied or not listing.files) or name.startswith(tuple(listing.empty_folders))
            if now - file.missing_since >= (self._grace if file.is_suspicious else grace):
                del self._files[name]
        previous_objects = self.objects
        self._merge(listing.problems)
        return [
            key for key in {**previous_objects, **self.objects} if previous_objects.get(key) != self.objects.get(key)
        ]

    def _list(self) -> _Listing:
        """List the folder and its subfolders. Raises OSError if the folder itself cannot be listed."""
        listing = _Listing()
        # Use a loop instead of `os.walk`, whose recursion on Python 3.11 fails on deeply nested folders.
        prefixes = [""]
        while prefixes:
            prefix = prefixes.pop()
            try:
                with os.scandir(self._root / prefix) as entries:
                    children = sorted(entries, key=lambda entry: entry.name)
            except OSError as error:
                if not prefix:
                    raise
                if not isinstance(error, FileNotFoundError | NotADirectoryError):
                    text = f"cannot be listed ({error.strerror}); its objects stay in force until it can"
                    listing.problems.append(ManifestProblem(prefix.rstrip("/"), 0, "", text))
                    listing.unreadable_folders.append(prefix)
                continue
            if prefix and not children:
                listing.empty_folders.append(prefix)
            for entry in children:
                is_folder = _is_folder(entry)
                # Skip hidden files, which belong to editors or are incomplete copies.
                if entry.name.startswith(".") or not (is_folder or entry.name.endswith((".yaml", ".yml", ".json"))):
                    continue
                if is_folder and (entry.is_symlink() or self._is_ignored(Path(entry.path))):
                    continue
                escaped_name = os.fsencode(entry.name).decode("utf-8", "backslashreplace")
                if escaped_name != entry.name:
                    # The file name is stored with each object, and must therefore be valid text.
                    text = "its name is not UTF-8; give it another one"
                    listing.problems.append(ManifestProblem(prefix + escaped_name, 0, "", text))
                elif is_folder:
                    prefixes.append(f"{prefix}{entry.name}/")
                elif (content := _read_content(entry.path, prefix + entry.name)) is not None:
                    listing.files[prefix + entry.name] = content
        return listing

    def _is_ignored(self, folder: Path) -> bool:
        # Ignore each output folder, also that of another hub or of an earlier setting: it contains copies of the
        # objects. `Path.is_dir` would raise for a folder without permission.
        return folder == self._ignored_folder or os.path.isdir(folder / PRIVATE)

    def _apply_file(self, name: str, file: _File) -> None:
        """Parse a file's new content, and replace the objects and problems of the file."""
        objects: dict[ObjectKey, DeclaredObject] = {}
        problems: list[ManifestProblem] = []
        for item in _parse(name, file.content):
            if isinstance(item, ManifestProblem):
                problems.append(item)
                continue
            manifest = self._make_manifest(item.object)
            key = ObjectKey.from_manifest(manifest)
            if key in objects:
                problems.append(_make_duplicate_problem(key, name, item.line, objects[key]))
                continue
            objects[key] = DeclaredObject(manifest, name, item.line)
            problems.extend(_find_hints(item))
        if any(problem.severity == "error" for problem in problems):
            objects = {**{key: old_object for key, old_object in file.objects.items() if key not in objects}, **objects}
        file.objects = objects
        file.problems = problems

    def _make_manifest(self, parsed_object: ApiObject) -> Manifest:
        manifest = parsed_object.to_manifest()
        manifest.pop("status", None)
        metadata: dict[str, Any] = {"name": parsed_object.metadata.name}
        if not isinstance(parsed_object, ManagedCluster):
            metadata["namespace"] = parsed_object.metadata.namespace or self._namespace
        for name in ("labels", "annotations"):
            if value := manifest["metadata"].get(name):
                metadata[name] = value
        return {**manifest, "metadata": metadata}

    def _merge(self, problems: list[ManifestProblem]) -> None:
        """Collect the objects and problems of all files; `problems` are those of the folder.

        If several files declare an object, the object in force stays; otherwise the first file by name wins.
        """
        candidates: dict[ObjectKey, list[DeclaredObject]] = {}
        for _, file in sorted(self._files.items()):
            if file.missing_since is None:
                for key, declared_object in file.objects.items():
                    candidates.setdefault(key, []).append(declared_object)
        for file in self._files.values():
            # An object of a missing file that is also in another file is not a duplicate, but probably renamed.
            if file.missing_since is not None:
                for key, declared_object in file.objects.items():
                    candidates.setdefault(key, [declared_object])
        objects: dict[ObjectKey, DeclaredObject] = {}
        for key, rivals in candidates.items():
            current_file = self.objects[key].file if key in self.objects else ""
            winner = next((rival for rival in rivals if rival.file == current_file), rivals[0])
            objects[key] = winner
            problems += (
                _make_duplicate_problem(key, rival.file, rival.line, winner) for rival in rivals if rival is not winner
            )
        self.objects = objects
        note_text = f"is empty, or its folder has no files any more; its objects stay in force for {self._grace:g} s"
        suspicious_files = {
            declared_object.file
            for declared_object in objects.values()
            if self._files[declared_object.file].is_suspicious
        }
        problems += (ManifestProblem(name, 0, "", note_text, "note") for name in suspicious_files)
        problems += (problem for file in self._files.values() for problem in file.problems)
        self.problems = sorted(problems, key=lambda problem: (problem.source, problem.line, problem.field))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # For a circular link, or a link to a folder without permission, reading the entry reports the reason.
        return False


def _read_content(path: str, name: str) -> _Content | None:
    """Return the content of a file, or the problem of reading it; None if it does not exist or is a broken link."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        return ManifestProblem(name, 1, "", f"cannot be read: {error.strerror}")
    if len(data) > MAX_BYTES:
        return ManifestProblem(name, 1, "", f"is larger than the {MAX_BYTES} bytes a file of manifests may have")
    return data


def _parse(name: str, content: _Content | None) -> list[ParsedDocument | ManifestProblem]:
    if not isinstance(content, bytes):
        return [content] if content is not None else []
    try:
        return parse_documents(content.decode("utf-8-sig"), name)
    except UnicodeDecodeError as error:
        return [ManifestProblem(name, content.count(b"\n", 0, error.start) + 1, "", "is not UTF-8 text")]


def _make_duplicate_problem(key: ObjectKey, file: str, line: int, winner: DeclaredObject) -> ManifestProblem:
    winner_place = f"{winner.file}, line {winner.line}" if winner.line else winner.file
    text = f"{key.kind} {key.name!r} is also in {winner_place}, and that one counts; remove one of them"
    return ManifestProblem(file, line, "metadata.name", text)


def _find_hints(document: ParsedDocument) -> list[ManifestProblem]:
    """Return notes about content that is valid and probably unintended."""
    cluster = document.object
    if isinstance(cluster, ManagedCluster) and "hub_accepts_client" not in cluster.spec.model_fields_set:
        text = "is missing, so the cluster is not accepted and nothing runs on it; true accepts it"
        return [ManifestProblem(document.source, document.line, "spec.hubAcceptsClient", text, "note")]
    return []
