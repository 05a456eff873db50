"""Checks that the main loop of a Celery worker runs, even while Redis is down.

The loop stores the time and touches the liveness file. Both become stale only if the loop is stuck. A worker that waits
for an unavailable Redis is not stuck.
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
from dsf.process.service import STUCK_SECONDS
from dsf.settings import settings

#: Monotonic time at which the main loop of this process's worker last ran; empty before the loop starts.
_ran_at: deque[float] = deque(maxlen=1)


def find_loop_problem() -> str:
    """Return how long the worker's main loop has been stuck; an empty string if it runs or has not begun."""
    silence = time.monotonic() - _ran_at[0] if _ran_at else 0.0
    return f"the worker's main loop has been stuck for {silence:.0f} s" if silence > STUCK_SECONDS else ""


def find_liveness_file() -> Path | None:
    """Return the liveness file of this process, or None if there is none."""
    folder = settings().probe_dir
    return None if folder is None else folder / "alive"


def keep_alive() -> None:
    """Record that the main loop runs or waits for Redis.

    The liveness file is empty while the process is ready. Otherwise it names the failing threads.
    """
    _ran_at.append(time.monotonic())
    file = find_liveness_file()
    if file is not None:
        # A full or read-only disk must not stop the worker: the probe reports the stale file.
        with contextlib.suppress(OSError):
            file.write_text(threads.describe_failing_threads())


class Liveness(bootsteps.StartStopStep):
    """Touches the liveness file while the main loop runs."""

    requires = ("celery.worker.components:Timer",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self._entry: Any = None

    def start(self, worker: Any) -> None:
        """Touch the file now and regularly."""
        keep_alive()
        self._entry = worker.timer.call_repeatedly(10.0, keep_alive)

    def stop(self, worker: Any) -> None:
        """Remove the file at the end of the process."""
        del worker
        if self._entry is not None:
            self._entry.cancel()
        if (file := find_liveness_file()) is not None:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)


class PatientConsumer(Consumer):
    """Waits for Redis after any error, and touches the liveness file while it waits because the main loop has ended."""

    def ensure_connected(self, conn: Any) -> Any:
        """Connect, with unlimited retries."""
        conn.ensure_connection = _touch_while_connecting(conn.ensure_connection)
        return super().ensure_connected(conn)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Close the connection, and wait a second if Redis refused a command, because it may refuse the next one, too.

        A replica refuses writes during a failover, for example.
        """
        super().on_connection_error_after_connected(exc)
        if isinstance(exc, redis.ResponseError) or isinstance(exc.__cause__, redis.ResponseError):
            keep_alive()
            time.sleep(1.0)


def _touch_while_connecting(connect: Callable[..., Any]) -> Callable[..., Any]:
    """Return `connect` with a callback, called every second, that also touches the liveness file."""

    def ensure_connection(*args: Any, callback: Callable[[], Any] | None = None, **options: Any) -> Any:
        def wait() -> None:
            keep_alive()
            if callback is not None:
                callback()

        return connect(*args, callback=wait, **options)

    return ensure_connection
