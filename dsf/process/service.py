"""The interface of the hub's services.

The services are `controller` (`dsf.hub.service`), `beat` (`dsf.services.beat`), `results` (`dsf.results.worker`) and
`web` (`dsf.web.service`). `dsf.services.process` runs one or more of them in a process.
"""

from __future__ import annotations

import os
import signal
from typing import Final, Protocol

#: Seconds without an iteration after which a main loop counts as stuck. A healthy loop waits shorter than this.
STUCK_SECONDS: Final = 60.0


class Service(Protocol):
    """A part of a process that is started once and stopped once."""

    @property
    def name(self) -> str:
        """The service's name, as in `--target`."""

    def start(self) -> None:
        """Start the service's threads and return. Raises DsfError."""

    def stop(self) -> None:
        """Finish the work in progress and release all resources, also if the service was not started."""

    def find_problem(self) -> str:
        """Return the reason, in one line, why the service does not work, if a restart may help; otherwise empty."""


class Shutdown:
    """Shuts the process down, by SIGTERM to itself, with an exit code. For threads that cannot continue."""

    def __init__(self) -> None:
        self.code = 0

    def fail(self, code: int) -> None:
        """Shut the process down with this exit code. Any thread may call it. The first call sets the code."""
        self.code = self.code or code
        os.kill(os.getpid(), signal.SIGTERM)
