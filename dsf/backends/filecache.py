"""Cache of files until they are changed by others: reading a cached file takes one `stat`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsf.backends.files import Stamp, remove, stamp_of, write_text


class FileCache:
    """Cached contents. Thread-safe; returned data is shared: do not change it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Stamp, Any]] = {}

    def read(self, path: Path, parse: Callable[[Path], Any]) -> Any:
        """The result of `parse` for the file; it returns None without a file."""
        # Before reading: later writes get another stamp.
        stamp = _stamp(str(path))
        known = self._known.get(str(path))
        if known is not None and known[0] == stamp:
            return known[1]
        data = parse(path)
        if stamp is not None:
            self._known[str(path)] = stamp, data
        return data

    def write(self, path: Path, text: str, data: Any, *, mode: int = 0o644) -> None:
        """Write `text` to the file; `data` is its parsed content. Raises BackendError."""
        self._known[str(path)] = write_text(path, text, mode=mode), data

    def remove(self, path: Path, *, up_to: Path) -> bool:
        """See `files.remove`."""
        self._known.pop(str(path), None)
        return remove(path, up_to=up_to)

    def changed(self) -> list[Path]:
        """Cached files that others changed or removed; they are dropped from the cache."""
        paths = [path for path, (stamp, _) in [*self._known.items()] if _stamp(path) != stamp]
        for path in paths:
            self._known.pop(path, None)
        return [*map(Path, paths)]


def _stamp(path: str) -> Stamp | None:
    try:
        return stamp_of(os.stat(path))
    except OSError:
        return None
