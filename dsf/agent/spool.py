"""Payloads between two stages, on the agent's own disk; stages hand over only the run id.

Small ones stay in memory while there is room: creating and removing a file costs ten times the copy.

A spool belongs to one process. Nothing in it outlives the process: it is emptied at startup, because after a crash no
cycle needs the rest, and a cycle without its payload fetches again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from dsf.errors import SettingsError
from dsf.messages import is_run_id

#: Files up to this many bytes are read whole; larger ones are sent in pieces of this size.
_PIECE_BYTES = 256 * 1024
#: Total bytes of such small payloads in memory.
_MOST_KEPT = 2 * 1024 * 1024
#: Suffix of an unfinished file.
_UNFINISHED = ".part"


class SpooledFile:
    """A large payload, read in pieces while being sent; at most one piece is in memory."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[memoryview]:
        buffer = bytearray(_PIECE_BYTES)
        view = memoryview(buffer)
        with self._path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                yield view[:count]


class Spool:
    """In-memory payloads, and files named by run id in a folder readable only by this user. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        # Run id -> payload, and time of arrival (unix seconds).
        self._kept: dict[str, tuple[bytes, float]] = {}
        self._room = _MOST_KEPT
        self._in_files: set[str] = set()

    @property
    def folder(self) -> Path:
        """The files' folder."""
        return self._folder

    def prepare(self) -> int:
        """Create and empty the folder; returns how many files were there.

        Raises SettingsError if the folder is unusable or not private to this user: payloads may be confidential. Its
        parent may have any owner and mode: an emptyDir belongs to root and is world-writable.
        """
        try:
            self._make()
            return self.sweep(0.0)
        except NotADirectoryError:
            raise SettingsError(f"DSF_AGENT_SPOOL_DIR: {self._folder} is not a folder of this user's own") from None
        except OSError as error:
            raise SettingsError(f"DSF_AGENT_SPOOL_DIR: cannot use {self._folder}: {error.strerror}") from None

    def _make(self) -> None:
        """Create the folder. Raises NotADirectoryError if somebody else's thing is there."""
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
        status = self._folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise NotADirectoryError(errno.ENOTDIR, "not a folder of this user's own", str(self._folder))
        self._folder.chmod(0o700)

    def write(self, run_id: str, pieces: Sequence[bytes | memoryview]) -> None:
        """Store a payload atomically. Raises OSError (disk full) and ValueError."""
        path = self._path(run_id)
        self._drop(run_id)
        if self._keep(run_id, pieces):
            return
        unfinished = path.with_name(path.name + _UNFINISHED)
        try:
            try:
                descriptor = _create(unfinished)
            except FileNotFoundError:
                # A cleaner of old files has removed the folder.
                self._make()
                descriptor = _create(unfinished)
            try:
                for piece in pieces:
                    _write_all(descriptor, piece)
            finally:
                os.close(descriptor)
            self._in_files.add(run_id)
            unfinished.rename(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise

    def read(self, run_id: str) -> bytes | SpooledFile | None:
        """The payload, or None if there is none (any more). Raises ValueError for an invalid run id."""
        if (kept := self._kept.get(run_id)) is not None:
            return kept[0]
        path = self._path(run_id)
        try:
            size = path.stat().st_size
            return path.read_bytes() if size <= _PIECE_BYTES else SpooledFile(path, size)
        except FileNotFoundError:
            return None

    def remove(self, run_id: str) -> None:
        """Remove a payload, if present."""
        self._drop(run_id)
        if run_id in self._in_files:
            self._in_files.discard(run_id)
            with contextlib.suppress(FileNotFoundError):
                self._path(run_id).unlink()

    def sweep(self, max_age: float) -> int:
        """Remove payloads older than `max_age` seconds, whose cycle's end went unnoticed; returns the number."""
        oldest = time.time() - max_age
        removed = sum(self._drop(run_id) for run_id, (_, at) in list(self._kept.items()) if at <= oldest)
        for entry in os.scandir(self._folder):
            with contextlib.suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime <= oldest:
                    Path(entry.path).unlink()
                    self._in_files.discard(entry.name)
                    removed += 1
        return removed

    def _keep(self, run_id: str, pieces: Sequence[bytes | memoryview]) -> bool:
        """Keep it in memory if small and if there is room."""
        size = sum(map(len, pieces))
        with self._lock:
            if size > min(_PIECE_BYTES, self._room):
                return False
            self._kept[run_id] = b"".join(pieces), time.time()
            self._room -= size
        return True

    def _drop(self, run_id: str) -> bool:
        """Forget it, if in memory."""
        with self._lock:
            kept = self._kept.pop(run_id, None)
            self._room += 0 if kept is None else len(kept[0])
        return kept is not None

    def _path(self, run_id: str) -> Path:
        # It came through Redis and becomes a file name.
        if not is_run_id(run_id):
            raise ValueError("not a run id")
        return self._folder / run_id


def own_folder(parent: Path | None, cluster: str) -> Path:
    """A folder of this user in `parent` or the temp directory; the same at every start, so that a crash leaves
    nothing."""
    return (parent or Path(tempfile.gettempdir())) / f"dsf-agent-{os.geteuid()}-{cluster}"


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)


def _write_all(descriptor: int, piece: bytes | memoryview) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(descriptor, view) :]
