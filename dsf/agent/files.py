"""A file that is reread when it changed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar, cast

from dsf.errors import DsfError

_Value = TypeVar("_Value")

#: Inode, size and mtime: Kubernetes replaces mounted files, editors rewrite them.
_Stamp = tuple[int, int, int]


class WatchedFile(Generic[_Value]):
    """The parsed content of a file, cached until the file changes. Thread-safe.

    `parse` gets the bytes; a ValueError or DsfError that it raises is raised by each `read` until the file changes.
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
        """The content as of now. Raises OSError if it is not readable, ValueError if it is too large."""
        stamp = self.stamp()
        with self._lock:
            if self._stamp != stamp:
                data = self._load()
                self._value, self._error = None, None
                try:
                    self._value = self._parse(data)
                except (ValueError, DsfError) as error:
                    self._error = error
                # The stamp from before reading: a change in between is seen at the next read.
                self._stamp = stamp
            if self._error is not None:
                # The traceback would grow with each raise.
                raise self._error.with_traceback(None)
            return cast("_Value", self._value)

    def _load(self) -> bytes:
        with self._path.open("rb") as file:
            data = file.read(self._max_bytes + 1)
        if len(data) > self._max_bytes:
            raise ValueError(f"{self._path} has more than {self._max_bytes} bytes")
        return data

    def stamp(self) -> _Stamp:
        """A value that changes with the file. Raises OSError if it is missing."""
        status = self._path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns
