"""The stages as Celery tasks: how they begin, are tried again, fail, and hand on to the next one.

Every cycle ends with exactly one result to the hub, unless the agent dies; then the hub declares it lost. A stage that
is tried again goes back to the queue with a delay, its arguments, its `expires` and the rest of its chain.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from celery import Task
from celery.exceptions import Reject

import dsf.log
from dsf.agent.config import ConfigSource
from dsf.agent.cycle import Cycles
from dsf.agent.metrics import AgentMetrics
from dsf.agent.outbox import Outbox
from dsf.agent.running import DuplicateError, OverlapError, Run
from dsf.api.summary import ScorerSummary
from dsf.errors import CycleError
from dsf.keys import is_name
from dsf.messages import Outcome, Result, Stage, is_run_id, new_run_id, run_time
from dsf.settings import Settings
from dsf.ticks import chain_signatures

log = dsf.log.get(__name__)

AnyTask = Task[Any, Any]

#: A tick may be faster than the ConfigMap with its new scorer: looks at the configuration, seconds apart.
_UNKNOWN_TRIES = 5
_UNKNOWN_WAIT = 1.0
#: Seconds that must be left for another try to be worth it.
_SHORTEST_TRY = 0.5
#: Seconds for which a result that brings no score is tried to be sent.
_SEND_SECONDS = 30.0


class Flow:
    """What the tasks of `dsf.tasks` call."""

    def __init__(
        self,
        settings: Settings,
        config: ConfigSource,
        cycles: Cycles,
        outbox: Outbox,
        metrics: AgentMetrics,
        hub_time: Callable[[], float] = time.time,
        on_success: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        """`hub_time` gives unix seconds by the hub's clock; `on_success` gets the scorer of each cycle that ended well,
        and in how many seconds its next one is due."""
        self._hub_time = hub_time
        self._settings = settings
        self._config = config
        self._cycles = cycles
        self._outbox = outbox
        self._metrics = metrics
        self._on_success = on_success

    def fetch(self, task: AnyTask, scorer: str, run_id: str | None) -> str:
        """Begin a cycle. Without a run id, as a person calls it, it makes its own."""
        if run_id is None:
            # By the hub's clock, as scheduled ones: the hub refuses a run that sorts before the last one.
            run_id = new_run_id(self._hub_time())

        def work(run: Run) -> str:
            if run.fetched:
                # A second copy of the tick. Its chain must not run beside the first one's.
                _drop_chain(task)
                return "duplicate"
            self._cycles.fetch(run)
            request: Any = task.request
            if not request.chain:
                expires = self._hub_time() + max(run.deadline - time.monotonic(), 0.0)
                request.chain = chain_signatures(self._settings.cluster, scorer, run.run_id, expires)
            return f"{run.counts['series']} series, {run.counts['bytes_in']} bytes"

        return self._stage(task, "fetch", scorer, run_id, work)

    def score(self, task: AnyTask, scorer: str, run_id: str) -> str:
        """Send what was fetched to the scoring API."""

        def work(run: Run) -> str:
            self._cycles.score(run)
            return f"{run.counts['results']} results"

        return self._stage(task, "score", scorer, run_id, work)

    def publish(self, task: AnyTask, scorer: str, run_id: str) -> str:
        """Show the scores on the agent's own /metrics and send them to the hub."""

        def work(run: Run) -> str:
            if run.response is None:
                self._cycles.score(run)
            outcome = self._publish(run)
            self._on_success(scorer, _interval(run, _expires(task)))
            return outcome

        return self._stage(task, "publish", scorer, run_id, work)

    def expired(self, request: Any) -> None:
        """Celery dropped a message of ours because it was too old. Called in the worker's main loop."""
        names = _names(request.args)
        if names is None:
            return
        scorer, run_id = names
        self._cycles.leave(scorer, run_id)
        message = f"it waited in the queue until {request.expires}, when the next cycle was due"
        self._outbox.send_later(self._cycles.ended(scorer, run_id, "skipped", "expired", message), _SEND_SECONDS)

    def cut_off(self, arguments: Any, problem: str) -> None:
        """A stage was done, but the message for the next one could not be sent: Redis has been away for too long."""
        names = _names(arguments)
        if names is None:
            return
        scorer, run_id = names
        log.error("cycle cut off, its next stage could not be queued", scorer=scorer, run=run_id, problem=problem)
        # The next tick must not wait for this run. It cannot be reported either: the hub will declare it lost.
        self._cycles.leave(scorer, run_id)

    def _stage(self, task: AnyTask, stage: Stage, scorer: str, run_id: str, work: Callable[[Run], str]) -> str:
        if _names((scorer, run_id)) is None:
            # Nothing to report to the hub: nothing of its can have such names.
            raise CycleError(stage, "bad_message", "the arguments are not the name of a scorer and a run id")
        summary = self._config.get(scorer)
        if summary is None:
            self._unknown(task, stage, scorer, run_id)
        try:
            run = self._cycles.enter(run_id, summary, _expires(task))
        except OverlapError:
            _drop_chain(task)
            self._skip(scorer, run_id, summary)
            return "skipped: overlap"
        except DuplicateError:
            _drop_chain(task)
            return "duplicate"
        try:
            return self._try(task, run, stage, work)
        finally:
            run.busy = False

    def _try(self, task: AnyTask, run: Run, stage: Stage, work: Callable[[Run], str]) -> str:
        try:
            return work(run)
        except CycleError as error:
            failure = error
        except Exception:
            log.exception("stage failed unexpectedly", stage=stage, scorer=run.scorer, run=run.run_id)
            failure = CycleError(stage, "internal_error", "a mistake in the agent; its log has the details")
        self._retry(task, run, failure)
        self._fail(run, failure)
        raise failure

    def _publish(self, run: Run) -> str:
        started = time.monotonic()
        self._metrics.publish(run.summary, run.response.results if run.response is not None else [])
        result = self._cycles.result(run)
        # As far as it can be known before sending.
        result.timings["publish"] = round(time.monotonic() - started, 6)
        # Before the result is seen: who waits for it may ask for the next cycle at once.
        self._cycles.leave(run.scorer, run.run_id)
        self._outbox.send(result, run.deadline)
        self._metrics.timed(run.summary.score_name, "publish", time.monotonic() - started)
        self._metrics.succeeded(run.summary.score_name, result.refused.items())
        return result.outcome

    def _retry(self, task: AnyTask, run: Run, failure: CycleError) -> None:
        """Raise Celery's Retry when another try may help and has time; else return."""
        if not failure.retryable:
            return
        tries = run.tries.get(failure.stage, 0)
        if tries >= run.summary.max_retries:
            return
        delay = self._delay(tries) if failure.retry_after is None else failure.retry_after
        # What took too long once gets a whole time-out, or it would only fail sooner.
        needed = run.summary.timeout_seconds if failure.reason == "timeout" else _SHORTEST_TRY
        if time.monotonic() + delay + needed > run.deadline:
            return
        run.tries[failure.stage] = tries + 1
        run.counts["retries"] = run.counts.get("retries", 0) + 1
        self._again(task, run.scorer, run.run_id, delay, failure)

    def _delay(self, tries: int) -> float:
        """Exponential, with jitter: scorers that failed together are not asked together again."""
        longest = min(self._settings.retry_backoff * 2.0**tries, self._settings.retry_backoff_max)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311

    def _again(self, task: AnyTask, scorer: str, run_id: str, delay: float, failure: CycleError) -> None:
        try:
            # The arguments, because a fetch by hand came without a run id.
            raise task.retry(args=(scorer, run_id), countdown=delay, exc=failure)
        except Reject:
            log.warning("stage cannot be tried again, Redis is away", scorer=scorer, run=run_id)

    def _unknown(self, task: AnyTask, stage: Stage, scorer: str, run_id: str) -> NoReturn:
        failure = CycleError(
            stage, "unknown_scorer", f"scorer {scorer!r} is not in the configuration that was delivered to this cluster"
        )
        if stage == "fetch" and task.request.retries < _UNKNOWN_TRIES:
            expires = _expires(task)
            if expires is None or self._hub_time() + _UNKNOWN_WAIT + _SHORTEST_TRY < expires:
                self._again(task, scorer, run_id, _UNKNOWN_WAIT, failure)
        self._cycles.leave(scorer, run_id)
        self._report(self._cycles.ended(scorer, run_id, "error", failure.reason, failure.message, stage=stage))
        raise failure

    def _skip(self, scorer: str, run_id: str, summary: ScorerSummary) -> None:
        message = f"another cycle of {summary.score_name!r} is still running on this cluster"
        self._report(self._cycles.ended(scorer, run_id, "skipped", "overlap", message))

    def _fail(self, run: Run, failure: CycleError) -> None:
        self._metrics.failed(run.summary.score_name, failure.stage, failure.reason)
        outcome: Outcome = "error"
        stage: Stage = failure.stage  # type: ignore[assignment]
        result = self._cycles.ended(
            run.scorer, run.run_id, outcome, failure.reason, failure.message, stage=stage, run=run
        )
        self._cycles.leave(run.scorer, run.run_id)
        self._report(result)

    def _report(self, result: Result) -> None:
        try:
            self._outbox.send(result, time.monotonic() + _SEND_SECONDS)
        except CycleError as error:
            # The hub will declare the run lost; this line says what it would have said.
            log.error(
                "result not sent",
                scorer=result.scorer,
                run=result.run,
                outcome=result.outcome,
                result_reason=result.reason,
                reason=error.reason,
            )


def _names(arguments: Any) -> tuple[str, str] | None:
    """Scorer and run id in the arguments of one of our messages; None when they cannot be these."""
    match arguments:
        case [str(scorer), str(run_id)] if is_name(scorer) and is_run_id(run_id):
            return scorer, run_id
    return None


def _interval(run: Run, expires: float | None) -> float:
    """Seconds between two cycles as they are now: somebody may have set longer ones than the scorer says."""
    says = float(run.summary.scoring_interval)
    return says if expires is None else max(says, expires - run_time(run.run_id))


def _drop_chain(task: AnyTask) -> None:
    """End the chain here although the task succeeds: Celery sends what is in the request when the task returns."""
    request: Any = task.request
    request.chain = None


def _expires(task: AnyTask) -> float | None:
    """When the message expires, in unix seconds."""
    expires: Any = task.request.expires
    if expires is None:
        return None
    try:
        moment = expires if isinstance(expires, datetime) else datetime.fromisoformat(str(expires))
        return moment.timestamp()
    except (ValueError, OverflowError):
        return None
