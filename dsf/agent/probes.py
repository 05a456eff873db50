"""The readiness file of an agent: ready means *scoring*, not that a process runs.

The file is there while the agent takes ticks and at least one of its scorers has had a good cycle lately. An agent
without scorers has nothing to fail and is ready. Liveness is in `dsf.workerprobes`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import dsf.log
from dsf.agent.config import ConfigSource

log = dsf.log.get(__name__)

#: Intervals of a scorer without a good cycle after which it does not count any more; also after it is first seen.
_INTERVALS = 3
#: At least this many seconds: with an interval of a second one slow answer would be an outage.
_LEAST = 10.0
#: Seconds between two looks; what begins and what ends is seen at once.
_LOOK_EVERY = 5.0


class ScoringProbe:
    """Keeps the file. Thread-safe. `clock` is a monotonic one."""

    def __init__(self, file: Path | None, config: ConfigSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        # Scorer -> until when it counts as one that scores.
        self._fresh_until: dict[str, float] = {}
        self._is_consuming = False
        self._is_ready: bool | None = None
        self._wake = threading.Event()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="dsf-readiness", daemon=True)

    def start(self) -> None:
        """Begin to look. A file that an earlier process left goes at once."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            self._thread.start()

    def stop(self) -> None:
        """Not ready any more."""
        self.consuming(False)
        self._is_stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def consuming(self, yes: bool) -> None:
        """The worker takes ticks, or does not any more: that is seen at once."""
        with self._lock:
            self._is_consuming = yes
            if not yes:
                self._put(False)
        self._wake.set()

    def succeeded(self, scorer: str, interval: float) -> None:
        """A cycle ended ok, empty or partial; the next one is due after this many seconds."""
        with self._lock:
            self._fresh_until[scorer] = self._clock() + max(_INTERVALS * interval, _LEAST)
            waits = self._is_ready is False
        if waits:
            self._wake.set()

    def look(self) -> None:
        """Make the file say what is true now."""
        summaries = self._config.summaries()
        now = self._clock()
        with self._lock:
            for name in self._fresh_until.keys() - summaries.keys():
                del self._fresh_until[name]
            for name, summary in summaries.items():
                self._fresh_until.setdefault(name, now + max(_INTERVALS * summary.scoring_interval, _LEAST))
            scores = not summaries or any(until > now for until in self._fresh_until.values())
            self._put(self._is_consuming and scores)

    def _put(self, ready: bool) -> None:
        """Write or remove the file. The lock is held."""
        if ready == self._is_ready or self._file is None:
            return
        if ready:
            self._file.touch()
        else:
            # First the reason: who finds the agent not ready looks for it in the log.
            if self._is_ready and self._is_consuming:
                log.warning("not ready: no scorer had a good cycle for 3 intervals", scorers=len(self._fresh_until))
            self._file.unlink(missing_ok=True)
        self._is_ready = ready

    def _run(self) -> None:
        while not self._is_stopped:
            self._wake.clear()
            try:
                self.look()
            except OSError as error:
                log.error("readiness file cannot be written", file=str(self._file), error=str(error))
            self._wake.wait(_LOOK_EVERY)
