"""A file that is read again when it changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar, cast

from dsf.errors import DsfError

_Value = TypeVar("_Value")

#: Inode, size and time of change: Kubernetes replaces mounted files, editors rewrite them.
_Stamp = tuple[int, int, int]


class WatchedFile(Generic[_Value]):
    """The parsed content of a file, cached until the file changes. Thread-safe.

    `parse` gets the bytes; a ValueError or DsfError that it raises passes through `read`, each time until the file
    changes.
    """

    def __init__(self, path: Path, parse: Callable[[bytes], _Value], *, max_bytes: int) -> None:
        self._path = path
        self._parse = parse
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._stamp: _Stamp | None = None
        self._value: _Value | None = None
        self._error: Exception | None = None

    def read(self) -> _Value:
        """The content as of now. Raises OSError when there is no readable file, ValueError when it is too large."""
        stamp = self.stamp()
        with self._lock:
            if self._stamp != stamp:
                data = self._load()
                self._value, self._error = None, None
                try:
                    self._value = self._parse(data)
                except (ValueError, DsfError) as error:
                    self._error = error
                # The stamp from before reading: a change in between is then seen at the next read.
                self._stamp = stamp
            if self._error is not None:
                # A traceback would grow with each time that it is raised.
                raise self._error.with_traceback(None)
            return cast("_Value", self._value)

    def _load(self) -> bytes:
        with self._path.open("rb") as file:
            data = file.read(self._max_bytes + 1)
        if len(data) > self._max_bytes:
            raise ValueError(f"{self._path} has more than {self._max_bytes} bytes")
        return data

    def stamp(self) -> _Stamp:
        """What changes when the file changes. Raises OSError when it is not there."""
        status = self._path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns
