"""The services of which a process of the hub consists, each with threads of its own.

The services are `controller` (`dsf.hub.service`), `beat` (`dsf.services.beat`), `results` (`dsf.results.worker`) and
`web` (`dsf.web.service`). `dsf.services.process` chooses those of a process and runs them.
"""

from __future__ import annotations

import os
import signal
from typing import Final, Protocol

#: Seconds without a sign of a main loop after which it counts as stuck. Each of its waits is shorter.
STUCK: Final = 60.0


class Service(Protocol):
    """A part of a process. Start it once, stop it once."""

    @property
    def name(self) -> str:
        """The service's name, as in `--target`."""

    def start(self) -> None:
        """Start to work, in threads of its own, and return soon. Raises DsfError."""

    def stop(self) -> None:
        """End the work in progress and release everything. The service may not have been started."""

    def problem(self) -> str:
        """Why it does not work, in one line, if a restart of the process may help; empty otherwise."""


class Ending:
    """How a process ends that a thread other than the main one cannot go on with: by SIGTERM to itself, with a code."""

    def __init__(self) -> None:
        self.code = 0

    def fail(self, code: int) -> None:
        """End the process in order, with this exit code. Any thread may call it; the first code counts."""
        self.code = self.code or code
        os.kill(os.getpid(), signal.SIGTERM)
