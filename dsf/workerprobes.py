"""The liveness file of a Celery worker: a probe that asks the worker through Redis would fail with Redis.

The file is touched by the worker's main loop, so it gets old exactly when that loop is stuck; waiting for a Redis that
is away is not being stuck.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from celery import bootsteps
from celery.worker.consumer import Consumer

from dsf.settings import settings

#: Seconds.
_TOUCH_EVERY = 10.0
_REFUSED_PAUSE = 1.0


def liveness_file() -> Path | None:
    """The liveness file of this process, if it is to have one."""
    config = settings()
    return config.agent_liveness_file if config.role == "agent" else config.results_liveness_file


def keep_alive() -> None:
    """Touch the file, from where the main loop is busy waiting for Redis."""
    file = liveness_file()
    if file is not None:
        file.touch()


def lives_no_more() -> None:
    """Remove the file: the process ends."""
    file = liveness_file()
    if file is not None:
        file.unlink(missing_ok=True)


class Liveness(bootsteps.StartStopStep):
    """Touches the file while the main loop runs."""

    requires = ("celery.worker.components:Timer",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self._file = liveness_file()
        self._entry: Any = None

    def start(self, worker: Any) -> None:
        """Touch it now and regularly."""
        if self._file is not None:
            self._file.touch()
            self._entry = worker.timer.call_repeatedly(_TOUCH_EVERY, self._file.touch)

    def stop(self, worker: Any) -> None:
        """The process ends."""
        del worker
        if self._entry is not None:
            self._entry.cancel()
        lives_no_more()


class PatientConsumer(Consumer):
    """Waits for Redis, whatever is wrong with it, and touches the file meanwhile: the loop has ended then."""

    def ensure_connected(self, conn: Any) -> Any:
        """Connect, however long it takes."""
        file = liveness_file()
        if file is not None:
            conn.ensure_connection = _touching(conn.ensure_connection, file)
        return super().ensure_connected(conn)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Close the connection. A Redis that is there and refuses commands would refuse the next one at once."""
        super().on_connection_error_after_connected(exc)
        if isinstance(exc, redis.ResponseError):
            keep_alive()
            time.sleep(_REFUSED_PAUSE)


def _touching(connect: Callable[..., Any], file: Path) -> Callable[..., Any]:
    """`connect` with its callback, which is called every second, extended."""

    def ensure_connection(*args: Any, callback: Callable[[], Any] | None = None, **options: Any) -> Any:
        def wait() -> None:
            file.touch()
            if callback is not None:
                callback()

        return connect(*args, callback=wait, **options)

    return ensure_connection
