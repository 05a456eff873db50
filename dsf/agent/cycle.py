"""What the three stages of a cycle do, without Celery.

Each stage has the summary's time-out, and never more than what is left until the next cycle. Whatever goes wrong is a
CycleError with the stage, a reason fit for a metric label, and words for a person; it never holds a token.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata

from dsf import http
from dsf.agent.metrics import AgentMetrics
from dsf.agent.running import Run, Running
from dsf.agent.secrets import SecretError, TokenSource
from dsf.agent.spool import Spool
from dsf.api.scoring import ScoringResponse, parse_response
from dsf.api.summary import ScorerSummary
from dsf.errors import CycleError, HttpError, ScoringResponseError
from dsf.http.failures import place
from dsf.messages import Outcome, Result, Stage
from dsf.settings import Settings
from dsf.sources import SOURCES, Context
from dsf.sources.held import Held

#: A cycle may be longer than its interval only when its message says so, and never longer than this many time-outs.
_TIMEOUTS = 3
#: Seconds between two looks for cycles and files that nobody finished.
_PURGE_EVERY = 60.0
#: Seconds after which a file of the spool is nobody's.
_SPOOL_AGE = 3600.0

_TOO_LATE = "no time is left before the next cycle begins"


class Cycles:
    """Runs the stages of this cluster's cycles. Thread-safe; methods of one run are called one after another."""

    def __init__(
        self,
        settings: Settings,
        tokens: TokenSource,
        spool: Spool,
        metrics: AgentMetrics,
        hub_time: Callable[[], float] = time.time,
        held: Held | None = None,
    ) -> None:
        """`hub_time` gives unix seconds by the hub's clock, which is the one that says when a run expires; `held` is
        what sources keep between cycles.
        """
        self._hub_time = hub_time
        self._settings = settings
        self._tokens = tokens
        self._spool = spool
        self._metrics = metrics
        self._running = Running()
        self._held = held
        self._agent = socket.gethostname()
        self._version = metadata.version("dynamic-scoring-framework")
        self._purge_lock = threading.Lock()
        self._purged_at = time.monotonic()

    def enter(self, run_id: str, summary: ScorerSummary, expires_at: float | None) -> Run:
        """Begin a run or go on with it. `expires_at` (unix seconds) is when the next one may begin.

        Raises OverlapError when another run of the scorer goes on, DuplicateError when this one has ended.
        """
        self._purge()
        # What a message says may shorten a cycle, but not hold the scorer back for ever.
        left = float(max(summary.scoring_interval, 1) if expires_at is None else expires_at - self._hub_time())
        longest = max(summary.scoring_interval, _TIMEOUTS * summary.timeout_seconds)
        return self._running.enter(run_id, summary, time.monotonic() + min(left, longest))

    def leave(self, scorer: str, run_id: str) -> None:
        """End a run: the next one may begin, and its payload goes."""
        self._running.leave(scorer, run_id)
        with contextlib.suppress(OSError):
            self._spool.remove(run_id)

    def seconds_left(self, scorer: str) -> float:
        """How long the scorer's cycle may still last; 0 when none runs."""
        return self._running.seconds_left(scorer)

    def fetch(self, run: Run) -> None:
        """Ask the source and put the scoring request into the spool. Raises CycleError."""
        summary = run.summary
        source = SOURCES.get(summary.source_type)
        if source is None:
            known = ", ".join(SOURCES)
            raise CycleError(
                "fetch", "unsupported_source", f"source type {summary.source_type!r} is not one of {known}"
            )
        token = self._token("fetch", summary.source_endpoint_auth_name, summary.source_endpoint_auth_key)
        with self._stage(run, "fetch") as deadline:
            context = Context(deadline, self._settings.max_source_bytes, time.time(), token, self._held)
            payload = source(summary, context)
            try:
                self._spool.write(run.run_id, payload.pieces)
            except OSError as error:
                message = f"cannot write {payload.size} bytes into the spool {self._spool.folder}: {error.strerror}"
                raise CycleError("fetch", "spool_failed", message) from None
        run.counts |= {"series": payload.series, "bytes_in": payload.received}
        run.fetched = True

    def score(self, run: Run) -> None:
        """Send the payload to the scoring API and keep its answer. A payload that is gone is fetched again.

        Raises CycleError.
        """
        summary = run.summary
        body = self._spool.read(run.run_id)
        if body is None:
            self.fetch(run)
            body = self._spool.read(run.run_id)
            if body is None:
                raise CycleError("score", "spool_failed", f"the payload vanished from the spool {self._spool.folder}")
        token = self._token("score", summary.scoring_endpoint_auth_name, summary.scoring_endpoint_auth_key)
        with self._stage(run, "score") as deadline:
            answer = http.post(
                summary.scoring_endpoint,
                body,
                token=token,
                deadline=deadline,
                max_bytes=self._settings.max_scoring_bytes,
            )
            run.response = self._parse(summary, answer, token)
        run.scored_at = time.time()
        run.counts |= {"bytes_out": len(body), "results": len(run.response.results)}
        with contextlib.suppress(OSError):
            self._spool.remove(run.run_id)

    def result(self, run: Run) -> Result:
        """The message about a run that was scored."""
        response = run.response
        if response is None:
            raise RuntimeError("the run was not scored")
        outcome: Outcome = "partial" if response.refused else "ok" if response.results else "empty"
        # model_construct: everything in it was checked when the answer was read.
        return Result.model_construct(
            cluster=self._settings.cluster,
            scorer=run.scorer,
            run=run.run_id,
            at=run.scored_at,
            outcome=outcome,
            results=list[tuple[dict[str, str], float]](response.results),
            refused=dict(response.refused),
            timings=_rounded(run.timings),
            counts=run.counts,
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
        run: Run | None = None,
    ) -> Result:
        """The message about a run without scores: why, and as far as it came what it cost."""
        return Result(
            cluster=self._settings.cluster,
            scorer=scorer,
            run=run_id,
            at=time.time(),
            outcome=outcome,
            stage=stage,
            reason=reason,
            message=message,
            timings=_rounded(run.timings) if run is not None else {},
            counts=run.counts if run is not None else {},
            agent=self._agent,
            version=self._version,
        )

    @contextlib.contextmanager
    def _stage(self, run: Run, stage: Stage) -> Iterator[float]:
        """Gives the stage its deadline, takes its time, and says of which stage an error is."""
        started = time.monotonic()
        if started >= run.deadline:
            raise CycleError(stage, "deadline", _TOO_LATE)
        deadline = min(run.deadline, started + run.summary.timeout_seconds)
        try:
            yield deadline
        except HttpError as error:
            if error.reason == "timeout" and time.monotonic() >= run.deadline:
                raise CycleError(stage, "deadline", f"{error}; {_TOO_LATE}") from None
            raise CycleError(
                stage, error.reason, str(error), retryable=error.retryable, retry_after=error.retry_after
            ) from None
        finally:
            seconds = time.monotonic() - started
            run.timings[stage] = run.timings.get(stage, 0.0) + seconds
            self._metrics.timed(run.summary.score_name, stage, seconds)

    def _token(self, stage: Stage, name: str, key: str) -> str | None:
        try:
            return self._tokens.token(name, key)
        except SecretError as error:
            raise CycleError(stage, "secret_missing", str(error)) from None

    def _parse(self, summary: ScorerSummary, answer: bytes, token: str | None) -> ScoringResponse:
        try:
            return parse_response(answer, max_results=self._settings.max_results)
        except ScoringResponseError as error:
            text = str(error)
            if token is not None and token.encode() in answer:
                # The head of the answer may end within the token, so that it cannot be masked there.
                text = "the answer is not a scoring response; it is not shown because it repeats the token"
            raise CycleError("score", error.reason, f"{place('POST', summary.scoring_endpoint)}: {text}") from None

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


def _rounded(timings: dict[str, float]) -> dict[str, float]:
    """Microseconds are enough, and shorter."""
    return {stage: round(seconds, 6) for stage, seconds in timings.items()}
