"""The interface of the hub's services.

The services are `controller` (`dsf.hub.service`), `beat` (`dsf.services.beat`), `results` (`dsf.results.worker`) and
`web` (`dsf.web.service`). `dsf.services.process` runs one or more of them in a process.
"""

from __future__ import annotations

import os
import signal
from typing import Final, Protocol

#: Seconds without a turn after which a main loop counts as stuck. A healthy loop never waits this long.
STUCK_SECONDS: Final = 60.0


class Service(Protocol):
    """A part of a process that is started once and stopped once."""

    @property
    def name(self) -> str:
        """The service's name, as in `--target`."""

    def start(self) -> None:
        """Start the service's threads and return. Raises DsfError."""

    def stop(self) -> None:
        """Finish the work in progress and release all resources. The service may not have been started."""

    def find_problem(self) -> str:
        """Return one line that says why the service does not work if a restart may help, otherwise an empty string."""


class Ending:
    """Ends the process by SIGTERM to itself, with an exit code, when a thread cannot continue."""

    def __init__(self) -> None:
        self.code = 0

    def fail(self, code: int) -> None:
        """Shut the process down with this exit code. Any thread may call it. The first call sets the code."""
        self.code = self.code or code
        os.kill(os.getpid(), signal.SIGTERM)
