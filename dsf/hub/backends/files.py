"""YAML files that are whole at any moment: written beside and renamed."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import yaml

from dsf.errors import BackendError

_Dumper: type[yaml.SafeDumper] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WIDTH = 120


class _PlainDumper(_Dumper):  # type: ignore[misc, valid-type]
    """No anchors and aliases: people read these files."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _PlainLoader(_Loader):  # type: ignore[misc, valid-type]
    """A time is text, as in JSON."""


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def dump(data: Any) -> str:
    """Plain data as YAML, keys in their order."""
    text: str = yaml.dump(data, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return text


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Make `text` the content of `path`; readers see the old or the new one. Missing folders are made.

    Raises BackendError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                os.fchmod(file.fileno(), mode)
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise BackendError(f"cannot write {path}: {error.strerror}; check permissions and free space") from None


def read_text(path: Path) -> str | None:
    """The content of a file, or None when there is no file. Raises BackendError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise BackendError(f"cannot read {path}: {reason}") from None


def read_yaml(path: Path) -> Any:
    """The data in a file of ours; None when there is no file or what is there is not YAML (any more).

    Raises BackendError when the file is there and cannot be read.
    """
    text = read_text(path)
    try:
        return None if text is None else yaml.load(text, Loader=_PlainLoader)  # noqa: S506 (a safe loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def remove(path: Path, *, up_to: Path) -> bool:
    """Remove a file, and its folders below `up_to` that are empty then; says whether the file was there.

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
