"""The cycles that run in this agent, one per scorer until its end or its deadline, and what each keeps between stages.

The scoring request between fetch and score is in memory, or beyond a size in a file without a name: the system frees it
when the process ends, however it ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from dsf.cycle.stages import Cycle
from dsf.errors import CycleError, SettingsError


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


@dataclass(slots=True)
class AgentCycle(Cycle):
    """A cycle that runs in this agent."""

    #: Seconds until the next tick: a person's override may exceed the scorer's own interval.
    interval: float = 0.0
    payload: bytes | FilePayload = b""
    #: Seconds before the next try, and why the last one failed.
    pause: float = 0.0
    failure: CycleError | None = None


class RunningCycles:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Run id -> cycle, also one that runs beyond its deadline.
        self._cycles: dict[str, Cycle] = {}
        #: Scorer -> its newest run.
        self._newest: dict[str, str] = {}

    def is_new(self, scorer: str, run_id: str) -> bool:
        """Note the run; whether it is another one than the scorer's last: a message may come twice."""
        with self._lock:
            if self._newest.get(scorer) == run_id:
                return False
            self._newest[scorer] = run_id
            return True

    def enter(self, cycle: Cycle) -> bool:
        """Begin this cycle; False if another one of its scorer is still running, or hangs."""
        now = time.monotonic()
        with self._lock:
            for other in self._cycles.values():
                # One that hangs keeps its thread, and a next one for each tick would use up all others. Every wait of
                # our own ends within 5 s of the deadline.
                if other.scorer == cycle.scorer and not other.deadline <= now <= other.deadline + 5.0:
                    return False
            self._cycles[cycle.run_id] = cycle
            return True

    def leave(self, cycle: Cycle) -> None:
        """The cycle has ended: the next one of its scorer may begin."""
        with self._lock:
            self._cycles.pop(cycle.run_id, None)

    def end_others(self, scorers: Container[str]) -> list[Cycle]:
        """End the cycles of all other scorers (their deadline is now); returns them."""
        now = time.monotonic()
        with self._lock:
            others = [cycle for cycle in self._cycles.values() if cycle.scorer not in scorers and cycle.deadline > now]
            for cycle in others:
                cycle.deadline = now
            for scorer in [scorer for scorer in self._newest if scorer not in scorers]:
                del self._newest[scorer]
        return others
