"""A real results worker in a process of its own, writing into a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from dsf.settings import ENV_PREFIX
from tests.integration.results.bed import SECRET

CELERY = (sys.executable, "-m", "celery", "-A", "dsf.celery", "worker", "-Q", "hub.results", "--loglevel=INFO")
OWN = (sys.executable, "-m", "dsf.results")


class WorkerProcess:
    """`with WorkerProcess(url, folder) as worker`: killed at the end if it still runs."""

    def __init__(self, url: str, folder: Path, command: tuple[str, ...] = OWN, **settings: str) -> None:
        self.log_file = folder / "worker.log"
        self._command = command
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)} | {
            "DSF_REDIS_URL": url,
            "DSF_SIGNING_SECRET": SECRET,
            "DSF_BACKEND": "dir",
            "DSF_MANIFESTS": str(folder),
            "DSF_RESULTS_VISIBILITY_TIMEOUT": "2",
            **settings,
        }
        self._log: IO[bytes] | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> WorkerProcess:
        self._log = self.log_file.open("ab")
        self.process = subprocess.Popen(
            self._command, env=self._environment, stdout=self._log, stderr=self._log, start_new_session=True
        )
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
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.process = None
        if self._log is not None:
            self._log.close()
            self._log = None
        return code

    def __enter__(self) -> WorkerProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
