"""The folder of a run's state: Redis' data and logs."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from dsf.errors import ToolError


def get_default_state_dir(manifests: Path) -> Path:
    """Return the folder of Redis' data and of logs for this folder of manifests.

    It is outside of the manifests, which are watched for changes, because Redis writes every second.
    """
    base = os.environ.get("XDG_STATE_HOME")
    root = (Path(base) if base else Path.home() / ".local" / "state") / "dsf"
    full = manifests.resolve()
    return root / f"{full.name}-{hashlib.sha256(str(full).encode()).hexdigest()[:8]}"


@contextlib.contextmanager
def lock_state(folder: Path) -> Iterator[None]:
    """Lock the state folder for this process. The folder is created if needed.

    Raises ToolError if another process has locked it or it cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = stack.enter_context((folder / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ToolError(
                f"`dsf up` or `dsf demo` already runs with its state in {folder}; end it first, or use another folder"
            ) from None
        except OSError as error:
            raise ToolError(f"cannot use the state folder {folder}: {error.strerror}") from None
        yield
