"""Real beats and workers for the tests: ended in every case, with their output at hand."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from dsf.settings import child_environment

ROOT = Path(__file__).resolve().parents[3]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Process:
    """One running command."""

    def __init__(self, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.popen = popen
        self._log = log

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL: no handler runs."""
        self.popen.kill()
        self.popen.wait(60)

    def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        self.popen.terminate()
        return self.popen.wait(60)


def celery(*arguments: str, app: str = "dsf.celery", **settings: object) -> AbstractContextManager[Process]:
    """`celery -A <app> <arguments>`; see `running`."""
    return running("celery", "-A", app, *arguments, **settings)


@contextlib.contextmanager
def running(*module: str, **settings: object) -> Iterator[Process]:
    """A module with its arguments and with these DSF_ settings; killed at the end if it still runs."""
    with tempfile.NamedTemporaryFile(prefix="dsf-process-", suffix=".log") as log:
        popen = subprocess.Popen(
            [sys.executable, "-m", *module],
            env=child_environment(**settings),
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
        process = Process(popen, Path(log.name))
        try:
            yield process
        finally:
            process.kill()


def beat(url: str, **settings: object) -> AbstractContextManager[Process]:
    """A real beat, as `dsf beat` runs it."""
    return running("dsf.beat", redis_url=url, **settings)
