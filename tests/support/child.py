"""Child processes of a test run. Each has its own session; the kernel ends it when the test process ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.support.wait import wait_for

# Asks the kernel to kill the process with its parent (PR_SET_PDEATHSIG), then becomes the program, so that a killed
# test run leaves nothing behind. A preexec_fn would be unsafe once the test process has threads.
_DIE_WITH_PARENT = (
    "import ctypes,os,sys;sys.platform=='linux' and ctypes.CDLL(None).prctl(1,9);os.execv(sys.argv[1],sys.argv[1:])"
)


class Child:
    """A running program, given by its absolute path; its output is appended to `log`.

    `environment` is added to that of this process, or replaces it with `inherit=False`. `errors` is the file for
    stderr; default: `log`.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        inherit: bool = True,
        errors: Path | None = None,
    ) -> None:
        with log.open("ab") as output, (errors or log).open("ab") as error_output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=error_output,
                start_new_session=True,
                env={**(os.environ if inherit else {}), **(environment or {})},
            )
        self.log = log

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True until the process has ended."""
        return self._process.poll() is None

    def tail(self) -> str:
        """Return the end of its output, for messages."""
        return self.log.read_text(errors="replace")[-3000:]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def wait(self, timeout: float = 60.0) -> int:
        """Return the exit code once the process has ended."""
        return self._process.wait(timeout)

    def kill(self) -> None:
        """Send SIGKILL, which also ends a process that was stopped by SIGSTOP."""
        self.signal(signal.SIGKILL)
        self.wait()


def run_program(command: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program and return its exit code and output; `options` are those of subprocess.run."""
    usual = {"capture_output": True, "text": True, "timeout": 300, "check": False}
    return subprocess.run([str(argument) for argument in command], **{**usual, **options})


@contextlib.contextmanager
def stopped(child: Child) -> Iterator[None]:
    """Suspend the process with SIGSTOP while the context is open."""
    child.signal(signal.SIGSTOP)
    # On a busy machine the process continues for a moment.
    wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED, message=f"{child.pid} to stop")
    try:
        yield
    finally:
        child.signal(signal.SIGCONT)
