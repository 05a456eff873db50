"""Lock of a folder for one hub: two would undo each other's work."""

from __future__ import annotations

import fcntl
from pathlib import Path

from dsf.backends.outfolder import PRIVATE
from dsf.errors import BackendError


class FolderLock:
    """Holds the lock until `release` or any end of the process."""

    def __init__(self, root: Path) -> None:
        """Raises BackendError when another process holds the folder or it cannot be written."""
        path = root / PRIVATE / "lock"
        try:
            # For its owner only: the master secret is in the same folder.
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise BackendError(f"cannot write into {root}: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise BackendError(f"another hub works on {root}; stop it, or choose another DSF_OUT_DIR") from None

    def release(self) -> None:
        """Release the lock."""
        self._file.close()
