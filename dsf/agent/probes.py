"""Files that Kubernetes' probes look at: a probe that asks the worker through Redis would fail with Redis.

The liveness file is touched by the worker's main loop, so it gets old exactly when that loop is stuck; waiting for a
Redis that is away is not being stuck. The readiness file is there while the worker consumes its queue.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import bootsteps
from celery.worker.consumer import Consumer

from dsf.settings import settings

#: Seconds.
_TOUCH_EVERY = 10.0


class Liveness(bootsteps.StartStopStep):
    """Touches `DSF_AGENT_LIVENESS_FILE`."""

    requires = ("celery.worker.components:Timer",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self._file = settings().agent_liveness_file
        self._entry: Any = None

    def start(self, worker: Any) -> None:
        """Touch it now and regularly."""
        if self._file is not None:
            touch(self._file)
            self._entry = worker.timer.call_repeatedly(_TOUCH_EVERY, touch, (self._file,))

    def stop(self, worker: Any) -> None:
        """The process ends: nothing lives here."""
        del worker
        if self._entry is not None:
            self._entry.cancel()
        if self._file is not None:
            self._file.unlink(missing_ok=True)


class PatientConsumer(Consumer):
    """Touches the liveness file while it waits for Redis too: the loop with its timers has ended then."""

    def ensure_connected(self, conn: Any) -> Any:
        """Connect, however long it takes."""
        file = settings().agent_liveness_file
        if file is not None:
            conn.ensure_connection = _touching(conn.ensure_connection, file)
        return super().ensure_connected(conn)


def _touching(connect: Callable[..., Any], file: Path) -> Callable[..., Any]:
    """`connect` with its callback, which is called every second, extended."""

    def ensure_connection(*args: Any, callback: Callable[[], Any] | None = None, **options: Any) -> Any:
        def wait() -> None:
            touch(file)
            if callback is not None:
                callback()

        return connect(*args, callback=wait, **options)

    return ensure_connection


class Readiness(bootsteps.StartStopStep):
    """Keeps `DSF_AGENT_READINESS_FILE` while there is a connection to Redis that is consumed from."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._file = settings().agent_readiness_file

    def start(self, consumer: Any) -> None:
        """The worker takes ticks."""
        del consumer
        if self._file is not None:
            touch(self._file)

    def stop(self, consumer: Any) -> None:
        """The connection was lost, or the worker ends."""
        del consumer
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def touch(path: Path) -> None:
    """Make the file, or make it new again."""
    path.touch()
