"""Stores the responses of sources until their scoring request is complete.

A large response is written to a file without a name while it arrives. The file is then mapped into memory, which the
system can reclaim at any time. The responses to plug-ins stay in memory, and count against one budget that all cycles
of an agent share.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any, Final

from dsf.errors import HttpError

#: A complete response.
Body = bytes | mmap.mmap

#: Maximum bytes of a response that stays in memory. Each thread of an agent has at most one response.
_MAX_MEMORY_BYTES: Final = 512 * 1024
#: A cycle that reserved this many bytes or more makes glibc return free memory to the system. Without that, glibc
#: keeps free memory that lies below memory in use, which may be most of a large response.
_TRIM_BYTES: Final = 8 * 1024 * 1024


def _find_trim() -> Callable[[int], object]:
    """Return glibc's malloc_trim, or a function without effect for another C library."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
        return trim
    return lambda _: None


_trim_memory: Final = _find_trim()


class ResponseBudget:
    """The memory that all cycles of a process may reserve together. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._reserved = 0
        self._lock = threading.Lock()

    @property
    def reserved(self) -> int:
        """Number of reserved bytes."""
        return self._reserved

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes. Return False if the budget has fewer bytes left."""
        with self._lock:
            if self._reserved + size > self.max_bytes:
                return False
            self._reserved += size
            return True

    def release(self, size: int) -> None:
        """Release `size` reserved bytes."""
        with self._lock:
            self._reserved -= size


class ResponseStorage:
    """Memory and disk space for the responses of one cycle: a context manager that releases the memory. Thread-safe."""

    def __init__(self, budget: ResponseBudget | None = None, folder: Path | None = None) -> None:
        """Use memory of `budget`, which is unlimited by default, and files in `folder`, by default the temp folder."""
        self._budget = budget
        self._lock = threading.Lock()
        self._reserved = 0
        self.folder = folder

    def __enter__(self) -> ResponseStorage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release_all()

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes of memory.

        Raises HttpError (too_large) if the responses of all cycles exceed the budget. A retry may then succeed.
        """
        if self._budget is None:
            return
        if not self._budget.reserve(size):
            raise HttpError(
                "too_large",
                f"the responses that all cycles read now are more than the {self._budget.max_bytes} bytes that an "
                "agent holds; ask for less, or let the scorers that share its cluster run at other times",
                retryable=True,
            )
        with self._lock:
            self._reserved += size

    def release_all(self) -> None:
        """Release all memory that this cycle has reserved."""
        with self._lock:
            reserved_bytes, self._reserved = self._reserved, 0
        if reserved_bytes >= _TRIM_BYTES:
            # Trim before the budget counts the memory as free, because the process may still hold it.
            _trim_memory(0)
        if self._budget is not None:
            self._budget.release(reserved_bytes)


class Spool:
    """Collects the pieces of a response: in memory, or in a file if they exceed _MAX_MEMORY_BYTES."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._pieces: list[bytes] = []
        self._size = 0
        self._file: IO[Any] | None = None

    def write(self, piece: bytes) -> None:
        """Append a piece. Raises HttpError (spool_failed)."""
        self._size += len(piece)
        if self._file is None and self._size <= _MAX_MEMORY_BYTES:
            self._pieces.append(piece)
            return
        try:
            if self._file is None:
                if self._folder is not None:
                    # A program that removes old files may have removed the folder.
                    self._folder.mkdir(parents=True, exist_ok=True)
                self._file = TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 (`body` or its end closes it)
                for earlier_piece in self._pieces:
                    self._append(self._file, earlier_piece)
                self._pieces.clear()
            self._append(self._file, piece)
        except OSError as error:
            raise self._make_error(error) from None

    def read_body(self) -> Body:
        """Return the response, which may be a mapped file. Raises HttpError (spool_failed)."""
        if self._file is None:
            return b"".join(self._pieces)
        with self._file as file:
            try:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError as error:
                raise self._make_error(error) from None

    def read_bytes(self) -> bytes:
        """Return the response in memory. Raises HttpError (spool_failed)."""
        body = self.read_body()
        if isinstance(body, bytes):
            return body
        with body:
            return body[:]

    @staticmethod
    def _append(file: IO[Any], piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            # A write to a nearly full disk may be incomplete.
            view = view[file.write(view) :]

    def _make_error(self, error: OSError) -> HttpError:
        folder = self._folder or "the temp folder"
        return HttpError("spool_failed", f"cannot write {self._size} bytes into {folder}: {error.strerror}")
