"""Real beats and workers for the tests: ended in every case, with their output at hand."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from dsf.settings import make_child_environment
from tests.support import forked
from tests.support.child import Child


class Process:
    """A running command."""

    def __init__(self, child: Child) -> None:
        self.child = child

    @property
    def output(self) -> str:
        return self.child.log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL: no handler runs."""
        self.child.kill()

    def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        self.child.signal(signal.SIGTERM)
        return self.child.wait()


@contextlib.contextmanager
def running(*module: str, **settings: object) -> Iterator[Process]:
    """Run a module with its arguments and these DSF_ settings; it is killed at the end if it still runs."""
    with tempfile.NamedTemporaryFile(prefix="dsf-process-", suffix=".log") as log:
        command = (sys.executable, "-m", *module)
        process = Process(forked.child(command, Path(log.name), make_child_environment(**settings), inherit=False))
        try:
            yield process
        finally:
            process.kill()


def beat(url: str, **settings: object) -> AbstractContextManager[Process]:
    """Return a real beat, as `dsf hub --target beat` runs it."""
    return running("dsf.hub", redis_url=url, target="beat", probe_port=0, **settings)


def celerys_beat(url: str) -> AbstractContextManager[Process]:
    """Return a real beat by Celery's own command."""
    return running("celery", "-A", "dsf.celery", "beat", role="beat", redis_url=url)


@contextlib.contextmanager
def patient_beat(url: str, **settings: object) -> Iterator[Process]:
    """A real beat that sleeps for ten minutes unless it is woken."""
    program = (
        "from dsf import beat_schedule as b; b.LONGEST_WAIT = 600; "
        "from dsf.process.launch import launch; launch('hub', 'dsf.services.process:run')"
    )
    with tempfile.NamedTemporaryFile(prefix="dsf-process-", suffix=".log") as log:
        environment = make_child_environment(redis_url=url, target="beat", probe_port=0, **settings)
        process = Process(Child((sys.executable, "-c", program), Path(log.name), environment, inherit=False))
        try:
            yield process
        finally:
            process.kill()
