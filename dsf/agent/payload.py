"""The scoring request between fetch and score: in memory, or beyond a size in a file without a name.

Nothing has to be cleaned up: the system frees such a file when the process ends, however it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile

from dsf.errors import SettingsError


class FilePayload:
    """A large payload. It can be read again and again, by one thread at a time."""

    def __init__(self, folder: Path | None, pieces: Sequence[bytes | memoryview]) -> None:
        """Raises OSError, such as that of a full disk."""
        self._size = sum(map(len, pieces))
        self._file = TemporaryFile(dir=folder)  # noqa: SIM115 (`close` closes it)
        try:
            for piece in pieces:
                self._file.write(piece)
            self._file.flush()
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[memoryview]:
        self._file.seek(0)
        buffer = bytearray(256 * 1024)
        view = memoryview(buffer)
        while count := self._file.readinto(buffer):
            yield view[:count]

    def close(self) -> None:
        """Free its disk space."""
        self._file.close()


def keep(folder: Path | None, pieces: Sequence[bytes | memoryview]) -> bytes | FilePayload:
    """Keep this payload. A large one goes into `folder`, by default the system's for temporary files.

    Raises OSError.
    """
    # With one in each thread, that is some MB in the whole agent.
    if sum(map(len, pieces)) <= 256 * 1024:
        return b"".join(pieces)
    try:
        return FilePayload(folder, pieces)
    except FileNotFoundError:
        # A cleaner of old files has removed the folder.
        if folder is None:
            raise
        folder.mkdir(parents=True, exist_ok=True)
        return FilePayload(folder, pieces)


def prepare(folder: Path | None) -> None:
    """Make the folder. Raises SettingsError if no file can be written there."""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        FilePayload(folder, [b"x"]).close()
    except OSError as error:
        raise SettingsError(f"DSF_AGENT_SPOOL_DIR: cannot use {folder or error.filename}: {error.strerror}") from None
