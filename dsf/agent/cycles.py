"""This agent's cycles, without Celery: the stages of `dsf.cycle`, the spool between them, the message at the end."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Container
from importlib import metadata

import dsf.log
from dsf import memory
from dsf.agent.metrics import AgentMetrics
from dsf.agent.running import Running
from dsf.agent.spool import Spool
from dsf.api.summary import ScorerSummary
from dsf.auth.secrets import SecretSource
from dsf.cycle.cycle import Cycle
from dsf.cycle.stages import Stages
from dsf.errors import CycleError
from dsf.http.deadline import cut
from dsf.messages import Outcome, Result, Stage
from dsf.settings import Settings
from dsf.sources.held import Held

log = dsf.log.get(__name__)

#: A cycle may exceed its interval only if its message says so, but never this many time-outs.
_TIMEOUTS = 3
#: Seconds between purges of unfinished cycles and their files.
_PURGE_EVERY = 60.0
#: Age in seconds from which a spool file belongs to no cycle.
_SPOOL_AGE = 3600.0


class Cycles:
    """Runs the stages of this cluster's cycles. Thread-safe; methods of one cycle are called one after another."""

    def __init__(
        self,
        settings: Settings,
        secrets: SecretSource,
        spool: Spool,
        metrics: AgentMetrics,
        hub_time: Callable[[], float] = time.time,
        held: Held | None = None,
    ) -> None:
        """`hub_time` gives unix seconds by the hub's clock, which decides when a cycle expires; `held` is the sources'
        state between cycles."""
        self._hub_time = hub_time
        self._settings = settings
        self._spool = spool
        self._running = Running()
        self._stages = Stages(settings, secrets, held, metrics)
        self._agent = socket.gethostname()
        self._version = metadata.version("dynamic-scoring-framework")
        self._purge_lock = threading.Lock()
        self._purged_at = time.monotonic()

    def enter(self, run_id: str, summary: ScorerSummary, expires_at: float | None) -> Cycle:
        """Begin or continue a cycle. `expires_at` (unix seconds) is when the next one may begin.

        Raises OverlapError if another cycle of the scorer is running, DuplicateError if this one has ended.
        """
        self._purge()
        # A message may shorten a cycle, but not block the scorer for ever.
        left = float(max(summary.scoring_interval, 1) if expires_at is None else expires_at - self._hub_time())
        longest = max(summary.scoring_interval, _TIMEOUTS * summary.timeout_seconds)
        return self._running.enter(run_id, summary, time.monotonic() + min(left, longest))

    def leave(self, scorer: str, run_id: str) -> None:
        """End a cycle: the next one may begin; its payload is removed."""
        self._running.leave(scorer, run_id)
        with contextlib.suppress(OSError):
            self._spool.remove(run_id)

    def knows(self, scorer: str, run_id: str) -> bool:
        """Whether this cycle is running, has ended, or was skipped."""
        return self._running.knows(scorer, run_id)

    def rest(self, cycle: Cycle) -> None:
        """A stage of the cycle has ended."""
        self._running.rest(cycle)

    def look(self, scorers: Container[str]) -> int:
        """End the stages of all other scorers; returns the number of hanging stages. Called regularly."""
        for cycle in self._running.end_others(scorers):
            log.info("cycle ended, its scorer was removed", scorer=cycle.scorer, run=cycle.run_id)
            cut(cycle)
        return self._running.stuck()

    def fetch(self, cycle: Cycle) -> None:
        """Query the source and spool the scoring request. Raises CycleError."""
        payload = self._stages.fetch(cycle)
        try:
            self._spool.write(cycle.run_id, payload.pieces)
        except OSError as error:
            message = f"cannot write {payload.size} bytes into the spool {self._spool.folder}: {error.strerror}"
            raise CycleError("fetch", "spool_failed", message) from None
        cycle.fetched = True

    def score(self, cycle: Cycle) -> None:
        """Send the payload to the scoring API and keep the response. A missing payload is fetched again.

        Raises CycleError.
        """
        body = self._spool.read(cycle.run_id)
        if body is None:
            self.fetch(cycle)
            body = self._spool.read(cycle.run_id)
            if body is None:
                raise CycleError("score", "spool_failed", f"the payload vanished from the spool {self._spool.folder}")
        self._stages.score(cycle, body)
        with contextlib.suppress(OSError):
            self._spool.remove(cycle.run_id)

    def result(self, cycle: Cycle) -> Result:
        """The message for a scored cycle."""
        response = cycle.response
        if response is None:
            raise RuntimeError("the cycle was not scored")
        outcome: Outcome = "partial" if response.refused else "ok" if response.results else "empty"
        # model_construct: everything in it was validated when the response was read.
        return Result.model_construct(
            cluster=self._settings.cluster,
            scorer=cycle.scorer,
            run=cycle.run_id,
            at=cycle.scored_at,
            outcome=outcome,
            results=list[tuple[dict[str, str], float]](response.results),
            refused=dict(response.refused),
            timings=_rounded(cycle.timings),
            counts=cycle.counts,
            agent=self._agent,
            version=self._version,
        )

    def ended(
        self,
        scorer: str,
        run_id: str,
        outcome: Outcome,
        reason: str,
        message: str,
        *,
        stage: Stage = "",
        cycle: Cycle | None = None,
    ) -> Result:
        """The message for a cycle without scores: reason, and timings so far."""
        return Result(
            cluster=self._settings.cluster,
            scorer=scorer,
            run=run_id,
            at=time.time(),
            outcome=outcome,
            stage=stage,
            reason=reason,
            message=message,
            timings=_rounded(cycle.timings) if cycle is not None else {},
            counts=cycle.counts if cycle is not None else {},
            agent=self._agent,
            version=self._version,
        )

    def _purge(self) -> None:
        now = time.monotonic()
        if now - self._purged_at < _PURGE_EVERY:
            return
        with self._purge_lock:
            if now - self._purged_at < _PURGE_EVERY:
                return
            self._purged_at = now
        for run_id in self._running.purge():
            with contextlib.suppress(OSError):
                self._spool.remove(run_id)
        with contextlib.suppress(OSError):
            self._spool.sweep(_SPOOL_AGE)
        memory.give_back()


def _rounded(timings: dict[str, float]) -> dict[str, float]:
    """Rounded to microseconds, which is shorter."""
    return {stage: round(seconds, 6) for stage, seconds in timings.items()}
