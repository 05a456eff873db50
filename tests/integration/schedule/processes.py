"""Real `celery` processes for the tests: ended in every case, with their output at hand."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dsf.settings import child_environment

ROOT = Path(__file__).resolve().parents[3]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Process:
    """One running `celery` command."""

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


@contextlib.contextmanager
def celery(*arguments: str, app: str = "dsf.celery", **settings: object) -> Iterator[Process]:
    """`celery -A <app> <arguments>` with these DSF_ settings; killed at the end if it still runs."""
    with tempfile.NamedTemporaryFile(prefix="dsf-celery-", suffix=".log") as log:
        popen = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", app, *arguments],
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


@contextlib.contextmanager
def beat(url: str, **settings: object) -> Iterator[Process]:
    """A real beat."""
    with celery("beat", role="beat", redis_url=url, **settings) as process:
        yield process
