"""YAML files with atomic writes: a temporary file is renamed."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from pathlib import Path
from typing import Any

import yaml

from dsf.errors import BackendError

_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Names of temporary files.
_PROCESS, _NUMBERS = secrets.token_hex(8), itertools.count()

#: Modification time, size and inode of a file.
Stamp = tuple[int, int, int]


class _PlainLoader(_Loader):  # type: ignore[misc, valid-type]
    """Loads times as text, as in JSON."""


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def stamp_of(status: os.stat_result) -> Stamp:
    """The stamp of a file, which differs after each change."""
    return status.st_mtime_ns, status.st_size, status.st_ino


def size_of(stamp: Stamp) -> int:
    """Size of the file in bytes."""
    return stamp[1]


def write_text(path: Path, text: str, *, mode: int = 0o644) -> Stamp:
    """Write `text` to `path` atomically: readers see the old or the new content. Creates missing folders.

    Returns its stamp. Raises BackendError.
    """
    try:
        try:
            handle, temporary = _beside(path)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = _beside(path)
        try:
            with open(handle, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fchmod(handle, mode)
                stamp = stamp_of(os.fstat(handle))
            os.replace(temporary, path)
            return stamp
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise BackendError(f"cannot write {path}: {error.strerror}; check permissions and free space") from None


def _beside(path: Path) -> tuple[int, str]:
    # Not `tempfile`, which takes longer than the write itself: a hub writes thousands of files at a time.
    name = f"{path.parent}/.{path.name[:100]}.{_PROCESS}{next(_NUMBERS)}.tmp"
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), name


def read_text(path: Path) -> str | None:
    """The content of a file, or None without a file. Raises BackendError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise BackendError(f"cannot read {path}: {reason}") from None


def read_yaml(path: Path) -> Any:
    """The data in one of our files; None without a file or valid YAML.

    Raises BackendError when the file exists and cannot be read.
    """
    text = read_text(path)
    try:
        return None if text is None else yaml.load(text, Loader=_PlainLoader)  # noqa: S506 (a safe loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def remove(path: Path, *, up_to: Path) -> bool:
    """Remove a file and then its empty parent folders below `up_to`; returns whether the file existed.

    Raises BackendError.
    """
    try:
        path.unlink()
        was_there = True
    except (FileNotFoundError, NotADirectoryError):
        was_there = False
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
    return was_there
