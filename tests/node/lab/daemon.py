"""Long-running programs, each known by the id that it was started with: they outlive the command that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.node.lab import folders
from tests.node.lab.network import inside


class Daemon:
    """A program in a network namespace (or in the machine's own), with a log. Its id is in a file below /run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._file = folders.RUN / "pids" / name

    @property
    def log(self) -> Path:
        """Path of its output."""
        return folders.LOGS / f"{self.name}.log"

    @property
    def pid(self) -> int | None:
        """Return its process id while it runs; another process with a reused id does not count."""
        try:
            pid, started = self._file.read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return int(pid) if _started(int(pid)) == started else None

    def start(self, *command: str | Path, namespace: str = "", environment: Mapping[str, str] | None = None) -> None:
        """Start it, unless it runs."""
        if self.pid is not None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                [*inside(namespace), *(str(argument) for argument in command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        self._file.write_text(f"{process.pid} {_started(process.pid)}")
        _CHILDREN.append(process)

    def stop(self, *, timeout: float = 20, number: signal.Signals = signal.SIGTERM) -> None:
        """End it, by SIGKILL when it does not within `timeout` seconds."""
        for sign in (number, signal.SIGKILL):
            pid = self.pid
            if pid is None:
                break
            os.kill(pid, sign)
            deadline = time.monotonic() + timeout
            while self.pid is not None and time.monotonic() < deadline:
                for child in _CHILDREN:
                    child.poll()
                time.sleep(0.05)
        self._file.unlink(missing_ok=True)


#: Children of this process: they must be waited for, or they stay as zombies.
_CHILDREN: list[subprocess.Popen[bytes]] = []


def daemons() -> Iterator[Daemon]:
    """All that have been started and not stopped."""
    for file in sorted((folders.RUN / "pids").glob("*")):
        yield Daemon(file.name)


def _started(pid: int) -> str:
    """Return the start of the process in clock ticks since boot; empty if there is none or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]
