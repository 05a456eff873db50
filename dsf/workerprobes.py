"""The liveness file of a Celery worker: a probe that asks the worker through Redis would fail with Redis.

The file is touched by the worker's main loop, so it gets old exactly when that loop is stuck; waiting for a Redis that
is away is not being stuck.
"""

from __future__ import annotations

import contextlib
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
    """Touch the file, if there is to be one; also from where the main loop is busy waiting for Redis."""
    file = liveness_file()
    if file is not None:
        # A full or read-only disk is no reason to stop working; the probe will tell.
        with contextlib.suppress(OSError):
            file.touch()


def lives_no_more() -> None:
    """Remove the file: the process ends."""
    file = liveness_file()
    if file is not None:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


class Liveness(bootsteps.StartStopStep):
    """Touches the file while the main loop runs."""

    requires = ("celery.worker.components:Timer",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self._entry: Any = None

    def start(self, worker: Any) -> None:
        """Touch it now and regularly."""
        if liveness_file() is not None:
            keep_alive()
            self._entry = worker.timer.call_repeatedly(_TOUCH_EVERY, keep_alive)

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
        conn.ensure_connection = _touching(conn.ensure_connection)
        return super().ensure_connected(conn)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Close the connection. A Redis that is there and refuses commands would refuse the next one at once."""
        super().on_connection_error_after_connected(exc)
        # Also one that is a replica for as long as no other takes its place.
        if isinstance(exc, redis.ResponseError) or isinstance(exc.__cause__, redis.ResponseError):
            keep_alive()
            time.sleep(_REFUSED_PAUSE)


def _touching(connect: Callable[..., Any]) -> Callable[..., Any]:
    """`connect` with its callback, which is called every second, extended."""

    def ensure_connection(*args: Any, callback: Callable[[], Any] | None = None, **options: Any) -> Any:
        def wait() -> None:
            keep_alive()
            if callback is not None:
                callback()

        return connect(*args, callback=wait, **options)

    return ensure_connection
