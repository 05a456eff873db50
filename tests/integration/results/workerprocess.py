"""A real results worker in a separate process, which writes into a folder."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from dsf.settings import ENV_PREFIX
from tests.integration.results.bed import SECRET
from tests.support import forked
from tests.support.child import Child

CELERY = (sys.executable, "-m", "celery", "-A", "dsf.celery", "worker", "-Q", "hub.results", "--loglevel=INFO")
OWN = (sys.executable, "-m", "dsf.hub")


class WorkerProcess:
    """`with WorkerProcess(url, folder) as worker`: killed at the end if it still runs."""

    def __init__(self, url: str, folder: Path, command: tuple[str, ...] = OWN, **settings: str) -> None:
        self.log_file = folder / "worker.log"
        self._command = command
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)} | {
            "DSF_TARGET": "results",
            "DSF_PROBE_PORT": "0",
            "DSF_REDIS_URL": url,
            "DSF_SIGNING_SECRET": SECRET,
            "DSF_BACKEND": "dir",
            "DSF_MANIFESTS": str(folder),
            **settings,
        }
        self.process: Child | None = None

    def start(self) -> WorkerProcess:
        self.process = forked.child(self._command, self.log_file, self._environment, inherit=False)
        return self

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self.process is None:
            return 0
        self.process.signal(number)
        code = self.process.wait(60)
        self.process = None
        return code

    def __enter__(self) -> WorkerProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
