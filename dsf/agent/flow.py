"""The stages as Celery tasks: start, retry, failure and hand-over to the next stage.

Every cycle ends with exactly one result to the hub, unless the agent dies; then the hub declares it lost. The next
stage, or a retry of this one, is a call for this worker itself (`dsf.agent.handover`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, NoReturn

from celery import Task
from celery.exceptions import Retry

import dsf.log
from dsf.agent.call import StageCall
from dsf.agent.config import ConfigSource
from dsf.agent.cycles import Cycles
from dsf.agent.ending import is_ending
from dsf.agent.handover import HandOver
from dsf.agent.metrics import AgentMetrics
from dsf.agent.outbox import Outbox
from dsf.agent.running import DuplicateError, OverlapError
from dsf.api.summary import ScorerSummary
from dsf.cycle.cycle import Cycle
from dsf.errors import CycleError
from dsf.keys import spoke_queue
from dsf.messages import FETCH_TASK, PUBLISH_TASK, SCORE_TASK, Outcome, Result, Stage, new_run_id, run_time
from dsf.settings import Settings

log = dsf.log.get(__name__)

AnyTask = Task[Any, Any]

#: A tick may arrive before its new scorer's ConfigMap: number of checks, seconds between them.
_UNKNOWN_TRIES = 5
_UNKNOWN_WAIT = 1.0
#: Least seconds that must be left for a retry.
_SHORTEST_TRY = 0.5
#: Seconds of attempts to send a result without a score.
_SEND_SECONDS = 30.0


class Flow:
    """Called by the tasks of `dsf.tasks`."""

    def __init__(
        self,
        settings: Settings,
        config: ConfigSource,
        cycles: Cycles,
        outbox: Outbox,
        metrics: AgentMetrics,
        handover: HandOver,
        hub_time: Callable[[], float] = time.time,
        on_success: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        """`hub_time` gives unix seconds by the hub's clock; `on_success` gets the scorer of each successful cycle, and
        the seconds until its next one is due."""
        self._hub_time = hub_time
        self._settings = settings
        self._config = config
        self._cycles = cycles
        self._outbox = outbox
        self._metrics = metrics
        self._handover = handover
        self._on_success = on_success

    def fetch(self, task: AnyTask, scorer: str, run_id: str | None) -> str:
        """Begin a cycle. Without a run id (a manual call) it makes one."""
        if run_id is None:
            # By the hub's clock, like scheduled ones: the hub refuses a run id that sorts before the last one.
            run_id = new_run_id(self._hub_time())

        def work(cycle: Cycle) -> str:
            self._cycles.fetch(cycle)
            return f"{cycle.counts['series']} series, {cycle.counts['bytes_in']} bytes"

        return self._stage(task, "fetch", scorer, run_id, work, then=SCORE_TASK)

    def score(self, task: AnyTask, scorer: str, run_id: str) -> str:
        """Send the fetched payload to the scoring API."""

        def work(cycle: Cycle) -> str:
            self._cycles.score(cycle)
            return f"{cycle.counts['results']} results"

        return self._stage(task, "score", scorer, run_id, work, then=PUBLISH_TASK)

    def publish(self, task: AnyTask, scorer: str, run_id: str) -> str:
        """Expose the scores on the agent's /metrics and send them to the hub."""

        def work(cycle: Cycle) -> str:
            if cycle.response is None:
                self._cycles.score(cycle)
            interval = _interval(cycle, _expires(task.request))
            outcome = self._publish(cycle, interval)
            self._on_success(scorer, interval)
            return outcome

        return self._stage(task, "publish", scorer, run_id, work)

    def expired(self, request: Any) -> None:
        """Celery dropped a stage call that had expired; `request` is its context. Called in the worker's main loop or
        by a pool thread; neither waits for Redis."""
        if len(request.args) < 2:
            # A manual fetch, which has no cycle yet.
            return
        scorer, run_id = request.args
        if request.task == FETCH_TASK and not request.retries and self._cycles.knows(scorer, run_id):
            # A duplicate of the tick; a try again is known, too, and waits for its turn.
            return
        self._cycles.leave(scorer, run_id)
        message = f"it waited in the queue until {request.expires}, when the next cycle was due"
        self._outbox.send_later(self._cycles.ended(scorer, run_id, "skipped", "expired", message), _SEND_SECONDS)

    def _stage(
        self,
        task: AnyTask,
        stage: Stage,
        scorer: str,
        run_id: str,
        work: Callable[[Cycle], str],
        then: str | None = None,
    ) -> str:
        """Run one stage, and have the task `then` called next."""
        summary = self._config.get(scorer)
        if summary is None:
            self._unknown(task, stage, scorer, run_id)
        # Thread-local: a lookup at each access.
        request = task.request
        expires = _expires(request)
        try:
            cycle = self._cycles.enter(run_id, summary, expires)
        except OverlapError:
            self._skip(scorer, run_id, summary)
            return "skipped: overlap"
        except DuplicateError:
            return "duplicate"
        try:
            if stage == "fetch" and cycle.fetched:
                # A duplicate of the tick.
                return "duplicate"
            said = self._try(task, cycle, stage, work)
        finally:
            self._cycles.rest(cycle)
        if then is not None:
            # fetch -> score -> publish: each is a task of this same worker.
            if expires is None:
                expires = self._hub_time() + max(cycle.deadline - time.monotonic(), 0.0)
            self._handover.follow(self._call(then, request, scorer, run_id, parent_id=request.id, expires=expires))
        return said

    def _call(self, name: str, by: Any, scorer: str, run_id: str, **options: Any) -> StageCall:
        """A call of the task `name` for this cycle, derived from the request `by`."""
        queue = spoke_queue(self._settings.cluster)
        return StageCall(name, (scorer, run_id), queue, root_id=by.root_id, **options)

    def _try(self, task: AnyTask, cycle: Cycle, stage: Stage, work: Callable[[Cycle], str]) -> str:
        try:
            return work(cycle)
        except CycleError as error:
            failure = error
        except BaseException:
            # Also what sys.exit() raises: this is a pool thread, and the cycle would have no result.
            log.exception("stage failed unexpectedly", stage=stage, scorer=cycle.scorer, run=cycle.run_id)
            failure = CycleError(stage, "internal_error", "a mistake in the agent; its log has the details")
        self._retry(task, cycle, failure)
        self._fail(cycle, failure)
        raise failure

    def _publish(self, cycle: Cycle, interval: float) -> str:
        started = time.monotonic()
        results = cycle.response.results if cycle.response is not None else []
        self._metrics.publish(cycle.summary, results, round(interval))
        result = self._cycles.result(cycle)
        # As far as known before sending.
        result.timings["publish"] = round(time.monotonic() - started, 6)
        # Before the result is visible: its reader may request the next cycle at once.
        self._cycles.leave(cycle.scorer, cycle.run_id)
        self._outbox.send(result, cycle.deadline)
        self._metrics.timed(cycle.summary.score_name, "publish", time.monotonic() - started)
        self._metrics.succeeded(cycle.summary.score_name, result.refused.items())
        return result.outcome

    def _retry(self, task: AnyTask, cycle: Cycle, failure: CycleError) -> None:
        """Raise Celery's Retry if a retry may help and there is time; else return."""
        if not failure.retryable or is_ending():
            return
        tries = cycle.tries.get(failure.stage, 0)
        if tries >= cycle.summary.max_retries:
            return
        delay = self._delay(tries) if failure.retry_after is None else failure.retry_after
        # After a time-out a retry needs a whole time-out, or it would only fail sooner.
        needed = cycle.summary.timeout_seconds if failure.reason == "timeout" else _SHORTEST_TRY
        if time.monotonic() + delay + needed > cycle.deadline:
            return
        cycle.tries[failure.stage] = tries + 1
        cycle.counts["retries"] = cycle.counts.get("retries", 0) + 1
        self._again(task, cycle.scorer, cycle.run_id, delay, failure)

    def _delay(self, tries: int) -> float:
        """Exponential, with jitter: scorers that failed together are not retried together."""
        longest = min(self._settings.retry_backoff * 2.0**tries, self._settings.retry_backoff_max)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311

    def _again(self, task: AnyTask, scorer: str, run_id: str, delay: float, failure: CycleError) -> NoReturn:
        """Like `task.retry`, which would go through Redis. Flower shows the same task, with its retries."""
        request = task.request
        call = self._call(
            task.name,
            request,
            scorer,
            # A manual fetch came without one.
            run_id,
            task_id=request.id,
            parent_id=request.parent_id,
            expires=_expires(request),
            retries=request.retries + 1,
        )
        self._handover.give(call, delay)
        raise Retry(exc=failure, when=delay)  # type: ignore[arg-type]

    def _unknown(self, task: AnyTask, stage: Stage, scorer: str, run_id: str) -> NoReturn:
        failure = CycleError(
            stage, "unknown_scorer", f"scorer {scorer!r} is not in the configuration that was delivered to this cluster"
        )
        if stage == "fetch" and task.request.retries < _UNKNOWN_TRIES:
            expires = _expires(task.request)
            if expires is None or self._hub_time() + _UNKNOWN_WAIT + _SHORTEST_TRY < expires:
                self._again(task, scorer, run_id, _UNKNOWN_WAIT, failure)
        self._cycles.leave(scorer, run_id)
        self._report(self._cycles.ended(scorer, run_id, "error", failure.reason, failure.message, stage=stage))
        raise failure

    def _skip(self, scorer: str, run_id: str, summary: ScorerSummary) -> None:
        message = f"another cycle of {summary.score_name!r} is still running on this cluster"
        self._report(self._cycles.ended(scorer, run_id, "skipped", "overlap", message))

    def _fail(self, cycle: Cycle, failure: CycleError) -> None:
        self._metrics.failed(cycle.summary.score_name, failure.stage, failure.reason)
        outcome: Outcome = "error"
        stage: Stage = failure.stage  # type: ignore[assignment]
        result = self._cycles.ended(
            cycle.scorer, cycle.run_id, outcome, failure.reason, failure.message, stage=stage, cycle=cycle
        )
        self._cycles.leave(cycle.scorer, cycle.run_id)
        self._report(result)

    def _report(self, result: Result) -> None:
        try:
            self._outbox.send(result, time.monotonic() + _SEND_SECONDS)
        except CycleError as error:
            # The hub will declare the cycle lost; this line has the content of its result.
            log.error(
                "result not sent",
                scorer=result.scorer,
                run=result.run,
                outcome=result.outcome,
                result_reason=result.reason,
                reason=error.reason,
            )


def _interval(cycle: Cycle, expires: float | None) -> float:
    """The interval in force, in seconds: an override may exceed the scorer's own."""
    says = float(cycle.summary.scoring_interval)
    return says if expires is None else max(says, expires - run_time(cycle.run_id))


def _expires(request: Any) -> float | None:
    """Expiry of the call, in unix seconds."""
    expires = request.expires
    return None if expires is None else float(expires.timestamp())
