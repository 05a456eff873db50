"""Supervised threads, which restart their work after an unexpected exception and report to the readiness probe.

All threads are started here (checked by `tests/unit/process/test_threads.py`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

import dsf.log

log = dsf.log.get(__name__)

#: Seconds without an exception after which restarted work counts as recovered.
_RECOVERY_SECONDS: Final = 10.0

_lock = threading.Lock()
_running: set[SupervisedThread] = set()


class SupervisedThread:
    """Runs `work` in a daemon thread until it returns, and restarts it after an exception.

    To stop it, the owner signals `work` to return, by an event or a queue, and then calls `join`.
    """

    def __init__(self, work: Callable[[], object], name: str) -> None:
        self.name = name
        self._work = work
        self._is_joined = threading.Event()
        self._failures = 0
        # Time by time.monotonic() from which the current run counts as recovered; infinite until the work restarts.
        self._recovered_at = math.inf
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the work."""
        with _lock:
            _running.add(self)
        self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        """Cancel a pending restart, and wait up to `timeout` seconds until the work has returned."""
        self._is_joined.set()
        # Skip a thread that was not started, and the current thread, because work may stop its own owner.
        if self.is_alive() and not self.is_current():
            self._thread.join(timeout)

    def is_alive(self) -> bool:
        """True if the thread has started and not ended."""
        return self._thread.is_alive()

    def is_current(self) -> bool:
        """True if the caller runs in this thread."""
        return self._thread is threading.current_thread()

    @property
    def is_failing(self) -> bool:
        """True after three failures in a row, until the work has run for some seconds without an exception."""
        return self._failures >= 3 and time.monotonic() < self._recovered_at

    def _run(self) -> None:
        try:
            while not self._run_work():
                # Double the pause with each failure in a row.
                pause_seconds = min(0.1 * 2.0 ** min(self._failures - 1, 30), 30.0)
                self._is_joined.wait(pause_seconds)
                if self._is_joined.is_set():
                    return
        finally:
            with _lock:
                _running.discard(self)

    def _run_work(self) -> bool:
        """Run the work once. Return True if it returned, and False if it raised an exception."""
        self._recovered_at = time.monotonic() + _RECOVERY_SECONDS
        try:
            self._work()
        except BaseException:  # SystemExit would otherwise end this thread silently
            is_first = time.monotonic() >= self._recovered_at
            self._recovered_at = math.inf
            self._failures = 1 if is_first else self._failures + 1
            log.exception("a thread failed, its work starts again", thread=self.name, failures=self._failures)
            return False
        return True


def run_in_background(work: Callable[[], object], name: str) -> threading.Thread:
    """Run `work` once in a daemon thread, and log an exception that it raises. Returns the started thread."""

    def run() -> None:
        try:
            work()
        except BaseException:
            log.exception("work in the background failed", thread=name)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def describe_failing_threads() -> str:
    """Return one line that names the repeatedly failing threads, for readiness probes; empty without such a thread."""
    with _lock:
        names = sorted(thread.name for thread in _running if thread.is_failing)
    return f"threads fail again and again: {', '.join(names)}; the log says why" if names else ""
