"""The readiness file of an agent: ready means *scoring*, not that a process runs.

The file exists while the agent takes ticks, no thread fails again and again, and at least one of its scorers has had a
recent successful cycle. An agent without scorers is ready. Liveness is in `dsf.worker.liveness`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import dsf.log
from dsf.agent.config import AgentConfig
from dsf.process import threads
from dsf.process.threads import SupervisedThread

log = dsf.log.get(__name__)


class ScoringProbe:
    """Maintains the file. Thread-safe. `clock` is monotonic."""

    def __init__(self, file: Path | None, config: AgentConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        # Scorer -> until when it counts as scoring.
        self._fresh_until: dict[str, float] = {}
        self._is_consuming = False
        self._is_ready: bool | None = None
        self._wake = threading.Event()
        self._is_stopped = False
        self._thread = SupervisedThread(self._run, "dsf-readiness")

    def start(self) -> None:
        """Start checking. A file of an earlier process is removed at once."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            self._thread.start()

    def stop(self) -> None:
        """No longer ready."""
        self.consuming(False)
        self._is_stopped = True
        self._wake.set()
        self._thread.join(5)

    def consuming(self, yes: bool) -> None:
        """The worker takes ticks, or no longer does; takes effect at once."""
        with self._lock:
            self._is_consuming = yes
            if not yes:
                self._put(False)
        self._wake.set()

    def succeeded(self, scorer: str, interval: float) -> None:
        """A cycle ended ok, empty or partial; the next one is due after this many seconds."""
        with self._lock:
            self._fresh_until[scorer] = self._clock() + _patience(interval)
            waits = self._is_ready is False
        if waits:
            self._wake.set()

    def look(self) -> None:
        """Update the file to the current state."""
        summaries = self._config.summaries()
        now = self._clock()
        with self._lock:
            for name in self._fresh_until.keys() - summaries.keys():
                del self._fresh_until[name]
            for name, summary in summaries.items():
                self._fresh_until.setdefault(name, now + _patience(summary.scoring_interval))
            # Without scorers there is nothing to do; a configuration that was never read says nothing.
            is_idle = not summaries and not (self._config.problem and not self._config.loaded_at)
            scores = is_idle or any(until > now for until in self._fresh_until.values())
            self._put(self._is_consuming and scores and not threads.problem())

    def _put(self, ready: bool) -> None:
        """Write or remove the file. The lock is held."""
        if ready == self._is_ready or self._file is None:
            return
        if ready:
            self._file.touch()
        else:
            # Reason first: it must be in the log before the agent is seen not ready.
            if self._is_ready and self._is_consuming:
                why = threads.problem() or "no scorer had a good cycle for 3 intervals"
                log.warning("not ready", why=why, scorers=len(self._fresh_until))
            self._file.unlink(missing_ok=True)
        self._is_ready = ready

    def _run(self) -> None:
        while not self._is_stopped:
            self._wake.clear()
            try:
                self.look()
            except OSError as error:
                log.error("readiness file cannot be written", file=str(self._file), error=str(error))
            # Start and end set it at once.
            self._wake.wait(5.0)


def _patience(interval: float) -> float:
    """Seconds without success after which a scorer stops counting, also after it is first seen.

    At least ten: with an interval of one second one slow response would be an outage.
    """
    return max(3 * interval, 10.0)
