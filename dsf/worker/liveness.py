"""Checks that a Celery worker's main loop runs. A probe through Redis would fail with Redis.

The loop notes the time and touches the liveness file, which become stale only when it is stuck; waiting for an
unavailable Redis does not count as stuck.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from celery import bootsteps
from celery.worker.consumer import Consumer

from dsf.process import threads
from dsf.process.service import STUCK
from dsf.settings import settings

#: Monotonic times at which the main loop of this process' worker last ran; none before its start.
_ran_at: deque[float] = deque(maxlen=1)


def loop_problem() -> str:
    """Since when the worker's main loop has been stuck; empty while it runs or has not begun."""
    silence = time.monotonic() - _ran_at[0] if _ran_at else 0.0
    return f"the worker's main loop has been stuck for {silence:.0f} s" if silence > STUCK else ""


def liveness_file() -> Path | None:
    """Return the liveness file of this process, if configured."""
    folder = settings().probe_dir
    return None if folder is None else folder / "alive"


def keep_alive() -> None:
    """Note that the main loop runs; also called while it waits for Redis.

    The file, if configured, is empty while the process is ready, else it names the failing threads.
    """
    _ran_at.append(time.monotonic())
    file = liveness_file()
    if file is not None:
        # A full or read-only disk is no reason to stop working; the probe will report it.
        with contextlib.suppress(OSError):
            file.write_text(threads.problem())


class Liveness(bootsteps.StartStopStep):
    """Touches the file while the main loop runs."""

    requires = ("celery.worker.components:Timer",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self._entry: Any = None

    def start(self, worker: Any) -> None:
        """Note it now and regularly."""
        keep_alive()
        self._entry = worker.timer.call_repeatedly(10.0, keep_alive)

    def stop(self, worker: Any) -> None:
        """The process ends: remove the file."""
        del worker
        if self._entry is not None:
            self._entry.cancel()
        if (file := liveness_file()) is not None:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)


class PatientConsumer(Consumer):
    """Waits for Redis after any error and touches the file meanwhile, as the main loop has ended."""

    def ensure_connected(self, conn: Any) -> Any:
        """Connect, with unlimited retries."""
        conn.ensure_connection = _touching(conn.ensure_connection)
        return super().ensure_connected(conn)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Close the connection. A Redis that refuses commands would refuse the next one immediately."""
        super().on_connection_error_after_connected(exc)
        # A replica during a failover answers so, too.
        if isinstance(exc, redis.ResponseError) or isinstance(exc.__cause__, redis.ResponseError):
            keep_alive()
            time.sleep(1.0)


def _touching(connect: Callable[..., Any]) -> Callable[..., Any]:
    """`connect` whose callback, called every second, also touches the file."""

    def ensure_connection(*args: Any, callback: Callable[[], Any] | None = None, **options: Any) -> Any:
        def wait() -> None:
            keep_alive()
            if callback is not None:
                callback()

        return connect(*args, callback=wait, **options)

    return ensure_connection
