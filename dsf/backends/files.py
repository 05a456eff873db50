"""YAML files with atomic writes: a temporary file is renamed."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import yaml

from dsf.api import kubeyaml
from dsf.errors import BackendError


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write `text` to `path` atomically: readers see the old or the new content. Creates missing folders.

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
    """The content of a file, or None without a file. Raises BackendError when it cannot be read."""
    try:
        # What is not UTF-8 was edited, and is no YAML of ours either.
        return path.read_text(encoding="utf-8", errors="backslashreplace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BackendError(f"cannot read {path}: {error.strerror}") from None


def read_yaml(path: Path) -> Any:
    """The data in one of our files; None without a file or valid YAML.

    Raises BackendError when the file exists and cannot be read.
    """
    text = read_text(path)
    try:
        # Without the limits on users' manifests: an object of ours may be larger.
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
