"""Where the responses of sources are kept while a scoring request is made of them.

A large response goes into a file without a name while it arrives, and is mapped into memory, which the system may take
back at any time. Answers that must stay in memory, as plug-ins read them, are taken out of one budget of all cycles of
an agent.
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

#: Bytes of a response that stays in memory. With one in each thread, that is some MB in the whole agent.
_IN_MEMORY: Final = 512 * 1024
#: Bytes of a cycle after which glibc is told to return free memory to the system. It keeps what lies below memory in
#: use, which can be most of what a large response took, and each of its heaps keeps its own.
_TRIM_BYTES: Final = 8 * 1024 * 1024


def _find_trim() -> Callable[[int], object]:
    """Return glibc's malloc_trim. Other C libraries do not have it."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
        return trim
    return lambda _: None


_trim_memory: Final = _find_trim()


class MemoryBudget:
    """Bytes that all cycles of a process may hold at a time. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._taken = 0
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """Bytes that are held at present."""
        return self._taken

    def take(self, size: int) -> bool:
        """Take so many bytes; False if there are not so many left."""
        with self._lock:
            if self._taken + size > self.max_bytes:
                return False
            self._taken += size
            return True

    def release(self, size: int) -> None:
        """Give back what was taken."""
        with self._lock:
            self._taken -= size


class Room:
    """Memory and disk for the responses of one cycle. A context manager: its end frees the memory. Thread-safe."""

    def __init__(self, budget: MemoryBudget | None = None, folder: Path | None = None) -> None:
        """Without a budget memory is unlimited; `folder` is for large responses, by default the system's for temporary
        files."""
        self._budget = budget
        self._lock = threading.Lock()
        self._taken = 0
        self.folder = folder

    def __enter__(self) -> Room:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.free()

    def take(self, size: int) -> None:
        """Take memory for so many bytes. Raises HttpError (too_large), also for the responses of other cycles: then a
        retry may succeed."""
        if self._budget is None:
            return
        if not self._budget.take(size):
            raise HttpError(
                "too_large",
                f"the answers that all cycles read now are more than the {self._budget.max_bytes} bytes that an agent "
                "holds; ask for less, or let the scorers that share its cluster run at other times",
                retryable=True,
            )
        with self._lock:
            self._taken += size

    def free(self) -> None:
        """Give back all of this cycle's memory."""
        with self._lock:
            reserved_bytes, self._taken = self._taken, 0
        if reserved_bytes >= _TRIM_BYTES:
            # Before the budget is released, because it does not count what the process keeps.
            _trim_memory(0)
        if self._budget is not None:
            self._budget.release(reserved_bytes)


class Spool:
    """A response while it arrives: in memory, and if it is large in a file."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._pieces: list[bytes] = []
        self._size = 0
        self._file: IO[Any] | None = None

    def write(self, piece: bytes) -> None:
        """Append a piece. Raises HttpError (spool_failed)."""
        self._size += len(piece)
        if self._file is None and self._size <= _IN_MEMORY:
            self._pieces.append(piece)
            return
        try:
            if self._file is None:
                if self._folder is not None:
                    # A cleaner of old files may have removed it.
                    self._folder.mkdir(parents=True, exist_ok=True)
                self._file = TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 (`body` or its end closes it)
                for earlier in self._pieces:
                    self._append(self._file, earlier)
                self._pieces.clear()
            self._append(self._file, piece)
        except OSError as error:
            raise self._make_error(error) from None

    def read_body(self) -> Body:
        """Return all that was written. Raises HttpError (spool_failed)."""
        if self._file is None:
            return b"".join(self._pieces)
        with self._file as file:
            try:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError as error:
                raise self._make_error(error) from None

    def read_bytes(self) -> bytes:
        """Return all that was written, in memory. Raises HttpError (spool_failed)."""
        body = self.read_body()
        if isinstance(body, bytes):
            return body
        with body:
            return body[:]

    @staticmethod
    def _append(file: IO[Any], piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            # A write of a nearly full disk may end early.
            view = view[file.write(view) :]

    def _make_error(self, error: OSError) -> HttpError:
        where = self._folder or "the temp folder"
        return HttpError("spool_failed", f"cannot write {self._size} bytes into {where}: {error.strerror}")
