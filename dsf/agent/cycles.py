"""The cycles of an agent: each runs its three stages, one after another, in the thread of its tick.

The tasks are the cycle, which a tick starts, and its stages, which the cycle calls.

Every cycle ends with exactly one result to the hub, unless the agent dies; then the hub declares it lost.
"""

from __future__ import annotations

import random
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from celery import Task, chain, shared_task

import dsf.log
from dsf.agent.config import AgentConfig
from dsf.agent.metrics import AgentMetrics
from dsf.agent.outbox import Outbox
from dsf.agent.resultroom import ResultRoom
from dsf.agent.ticks import REFUSAL
from dsf.agent.turns import Turns
from dsf.api.score import validity_at
from dsf.api.scoringresponse import ScoringResult
from dsf.api.summary import ScorerSummary
from dsf.cycle.composite import LastResults
from dsf.cycle.stages import Cycle, FilePayload, Stages, store_payload
from dsf.errors import CycleError
from dsf.http.deadline import cut
from dsf.messages import (
    CYCLE_TASK,
    FETCH_TASK,
    PUBLISH_TASK,
    SCORE_TASK,
    Outcome,
    Result,
    Stage,
    new_run_id,
    run_time,
)
from dsf.reasons import SkipReason
from dsf.settings import Settings
from dsf.sources.room import MemoryBudget, Room

log = dsf.log.get(__name__)

AnyTask = Task[Any, Any]

#: Seconds between two attempts to find the summary of an unknown scorer.
_LOOK_EVERY: Final = 1.0
#: Least seconds that must be left for another try.
_SHORTEST_TRY: Final = 0.5
#: Most skipped ticks of a scorer in a row because its last cycle took too long; then one is run anyway.
_MOST_PASSED: Final = 5
#: First wait in seconds before a stage is tried again; it doubles.
FIRST_PAUSE: Final = 0.5


@dataclass(slots=True)
class AgentCycle(Cycle):
    """A cycle that runs in this agent."""

    #: Seconds until the next tick: a person's override may exceed the scorer's own interval.
    interval: float = 0.0
    payload: bytes | FilePayload = b""
    #: Seconds before the next try, and why the last one failed.
    pause: float = 0.0
    failure: CycleError | None = None
    #: The last stage that succeeded, in some words; for Flower.
    progress: str = ""

    def __repr__(self) -> str:
        """Scorer and run id, and what the last stage got: Flower shows it as argument and result of each stage."""
        return f"{self.scorer} {self.run_id}{f': {self.progress}' if self.progress else ''}"


class RunningCycles:
    """Tracks running cycles and the duration of each scorer's last cycle. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Run id -> cycle, also one that runs beyond its deadline.
        self._cycles: dict[str, Cycle] = {}
        #: Scorer -> its last runs, by their threads: ticks that come together begin in any order.
        self._last: dict[str, deque[str]] = {}
        #: Scorer -> seconds that its last successful cycle took, and its ticks in a row for which that left no time.
        self._took: dict[str, float] = {}
        self._passed: dict[str, int] = {}

    def is_new(self, scorer: str, run_id: str) -> bool:
        """Note the run. True if this run id was not seen among the scorer's last ones: a message may come twice."""
        with self._lock:
            last = self._last.setdefault(scorer, deque(maxlen=8))
            if run_id in last:
                return False
            last.append(run_id)
            return True

    def has_time(self, scorer: str, remaining_seconds: float, interval: float) -> bool:
        """True if a cycle is begun with so many seconds left of its interval.

        The last successful cycle must have taken no longer: a longer one could not end in time, and would only keep a
        thread from a cycle that can. A cycle with half of its interval left is always begun, and one after some
        skipped ticks in a row: the last cycle may have been slow for once.
        """
        with self._lock:
            is_late = remaining_seconds <= min(self._took.get(scorer, 0.0), max(0.0, interval) / 2)
            self._passed[scorer] = self._passed.get(scorer, 0) + 1 if is_late else 0
            if self._passed[scorer] > _MOST_PASSED:
                self._passed[scorer] = 0
                return True
            return not is_late

    def succeeded(self, scorer: str, seconds: float) -> None:
        """A cycle took so long."""
        with self._lock:
            self._took[scorer] = seconds

    def enter(self, cycle: Cycle) -> bool:
        """Begin this cycle; False if another one of its scorer is still running, or hangs."""
        now = time.monotonic()
        with self._lock:
            for other in self._cycles.values():
                # A cycle that hangs keeps its thread, and a next one for each tick would use up all others. Every wait
                # of our own ends within 5 s of the deadline.
                if other.scorer == cycle.scorer and not other.deadline <= now <= other.deadline + 5.0:
                    return False
            self._cycles[cycle.run_id] = cycle
            return True

    def leave(self, cycle: Cycle) -> None:
        """The cycle has ended: the next one of its scorer may begin."""
        with self._lock:
            self._cycles.pop(cycle.run_id, None)

    def end_others(self, scorers: Container[str]) -> list[Cycle]:
        """End the cycles of all other scorers (their deadline is now); returns them."""
        now = time.monotonic()
        with self._lock:
            undelivered_cycles = [
                cycle for cycle in self._cycles.values() if cycle.scorer not in scorers and cycle.deadline > now
            ]
            for cycle in undelivered_cycles:
                cycle.deadline = now
            for scorer in [scorer for scorer in self._last if scorer not in scorers]:
                del self._last[scorer]
                self._took.pop(scorer, None)
                self._passed.pop(scorer, None)
        return undelivered_cycles


class CycleRunner:
    """Runs cycles. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        config: AgentConfig,
        stages: Stages,
        outbox: Outbox,
        metrics: AgentMetrics,
        *,
        ending: threading.Event | None = None,
        hub_time: Callable[[], float] = time.time,
        results: LastResults | None = None,
        on_success: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        """`ending` is set at shutdown: nothing is tried again then. `hub_time` gives unix seconds by the hub's clock.
        `results` gets those of each scorer. `on_success` gets the scorer of each successful cycle, and the seconds
        until its next one is due."""
        self._settings = settings
        self._config = config
        self._stages = stages
        self._outbox = outbox
        self._metrics = metrics
        self._results = results or LastResults()
        self._result_room = ResultRoom(config.namespaces)
        # Seconds between two log lines about the results of a scorer.
        self._throttle = dsf.log.Throttle(600.0)
        self._on_success = on_success
        #: Unix seconds by the hub's clock.
        self.hub_time = hub_time
        self._running = RunningCycles()
        # For what stays in memory: a plug-in's answers and its series, each as large as one cycle may have.
        self._budget = MemoryBudget(2 * settings.max_source_bytes)
        #: The ticks that wait for a thread.
        self.turns = Turns(settings.agent_concurrency, config.namespaces)
        self._agent = socket.gethostname()
        self._version = metadata.version("dynamic-scoring-framework")
        self._ending = ending or threading.Event()

    def run(
        self,
        scorer: str,
        run_id: str | None,
        deadline: float | None,
        stages: tuple[AnyTask, ...],
        refusal: CycleError | None = None,
    ) -> str:
        """Run one cycle as a chain of the tasks of its stages, and return its outcome; skip it with a `refusal`.

        `deadline` (unix seconds by the hub's clock) is when the next one may begin. A call by hand has neither that nor
        a run id. Raises CycleError for a cycle without a score, once that is sent.
        """
        # By the hub's clock: the hub refuses a run id that sorts before the last one.
        run_id = run_id or new_run_id(self.hub_time())
        if not self._running.is_new(scorer, run_id):
            return "duplicate"
        if refusal is not None:
            return self._without_score(scorer, run_id, "skipped", refusal)
        remaining_seconds = 0.0 if deadline is None else deadline - self.hub_time()
        if deadline is not None and (
            remaining_seconds <= 0 or not self._running.has_time(scorer, remaining_seconds, deadline - run_time(run_id))
        ):
            message = (
                "its tick waited in the queue until no time was left for a cycle: the agent was away, or its threads "
                "were busy"
            )
            return self._without_score(scorer, run_id, "skipped", CycleError("", SkipReason.EXPIRED, message))
        summary = self._find(scorer, deadline)
        if summary is None:
            message = f"scorer {scorer!r} is not in the configuration that was delivered to this cluster"
            if problem := self._config.problem:
                message = f"the agent cannot read the configuration of this cluster: {problem}"
            unknown = CycleError("fetch", "unknown_scorer", message)
            self._without_score(scorer, run_id, "error", unknown)
            raise unknown
        cycle = self._begin(run_id, summary, deadline)
        if not self._running.enter(cycle):
            message = f"another cycle of {summary.score_name!r} is still running on this cluster"
            return self._without_score(scorer, run_id, "skipped", CycleError("", SkipReason.OVERLAP, message))
        first, *further_stages = stages
        try:
            # In this thread, with the retries that `_try` requests; raises what the failed stage raised.
            outcome: str = chain(first.s(cycle), *(task.s() for task in further_stages)).apply().get()
        except Exception as error:
            _free(error)
            self._fail(cycle)
            raise
        else:
            self._on_success(scorer, cycle.interval)
            return outcome
        finally:
            self._running.leave(cycle)
            if not isinstance(cycle.payload, bytes):
                cycle.payload.close()

    def fetch(self, task: AnyTask, cycle: AgentCycle) -> AgentCycle:
        """Query the source, and store the scoring request in the cycle. Raises CycleError, or Celery's Retry."""

        def work() -> str:
            folder: Path | None = self._settings.agent_spool_dir
            with cycle.room:
                payload = self._stages.fetch(cycle)
                try:
                    cycle.payload = store_payload(folder, payload.pieces)
                except OSError as error:
                    message = f"cannot write {payload.size} bytes into {folder or 'the temp folder'}: {error.strerror}"
                    raise CycleError("fetch", "spool_failed", message) from None
            return f"{payload.series} series, {payload.received} bytes"

        cycle.progress = self._try(task, "fetch", cycle, work)
        return cycle

    def score(self, task: AnyTask, cycle: AgentCycle) -> AgentCycle:
        """Send the scoring request, and store the response in the cycle. Raises CycleError, or Celery's Retry."""

        def work() -> str:
            self._stages.score(cycle, cycle.payload)
            return f"{cycle.counts['results']} results"

        cycle.progress = self._try(task, "score", cycle, work)
        return cycle

    def publish(self, task: AnyTask, cycle: AgentCycle) -> str:
        """Expose the scores on the agent's /metrics, send them to the hub, and return the outcome."""

        def work() -> str:
            began = time.monotonic()
            response = cycle.response
            if response is None:
                raise RuntimeError("the cycle was not scored")
            interval, declared = round(cycle.interval), cycle.summary.scoring_interval
            validity = validity_at(interval or declared, cycle.summary.validity_seconds, declared)
            self._keep_results(cycle, response.results, validity, interval)
            outcome: Outcome = "partial" if response.refused else "ok" if response.results else "empty"
            # As far as known before sending.
            cycle.timings["publish"] = time.monotonic() - began
            result = self._result(cycle.scorer, cycle.run_id, outcome, cycle)
            # Without pauses between tries, and the wait for a hub that is behind.
            self._running.succeeded(cycle.scorer, sum(cycle.timings.values()))
            # Before the result is visible: its reader may request the next cycle at once.
            self._running.leave(cycle)
            self._outbox.send(result, cycle.deadline)
            self._metrics.timed(cycle.summary.score_name, "publish", time.monotonic() - began)
            self._metrics.succeeded(cycle.summary.score_name, response.refused.items())
            return outcome

        return self._try(task, "publish", cycle, work)

    def _keep_results(
        self, cycle: AgentCycle, results: Sequence[ScoringResult], validity: float, interval: int
    ) -> None:
        """Keep the results for the agent's /metrics and for composites, if there is room; the hub gets them anyway."""
        if self._result_room.take(cycle.scorer, results):
            self._results.put(cycle.summary, results, validity)
            self._metrics.publish(cycle.summary, results, interval)
            return
        self._results.put(cycle.summary, (), 0.0)
        self._metrics.publish(cycle.summary, (), interval)
        not_logged = self._throttle.take(cycle.scorer)
        if not_logged is not None:
            log.warning(
                "results are not kept for /metrics and composites, as its namespace has used its share of the memory; "
                "return fewer results",
                scorer=cycle.scorer,
                results=len(results),
                not_logged=not_logged,
            )

    def end_others(self, scorers: Container[str]) -> None:
        """End the cycles of all other scorers, and forget their expired results."""
        self._results.retain(scorers)
        for cycle in self._running.end_others(scorers):
            log.info("cycle ended, its scorer was removed", scorer=cycle.scorer, run=cycle.run_id)
            cut(cycle)

    def _begin(self, run_id: str, summary: ScorerSummary, deadline: float | None) -> AgentCycle:
        declared = float(max(summary.scoring_interval, 1))
        remaining_seconds = declared if deadline is None else deadline - self.hub_time()
        # A tick may shorten a cycle, but not block the scorer for ever.
        # A cycle may exceed its interval only up to the deadline of its tick, and never three time-outs.
        longest = max(declared, 3 * summary.timeout_seconds)
        interval = declared if deadline is None else max(declared, deadline - run_time(run_id))
        return AgentCycle(
            summary.name,
            run_id,
            summary,
            time.monotonic() + min(remaining_seconds, longest),
            room=Room(self._budget, self._settings.agent_spool_dir),
            interval=interval,
        )

    def _find(self, scorer: str, deadline: float | None) -> ScorerSummary | None:
        # The tick may arrive before its new scorer's ConfigMap.
        until = time.monotonic() + 5.0
        if deadline is not None:
            until = min(until, time.monotonic() + deadline - self.hub_time() - _LOOK_EVERY - _SHORTEST_TRY)
        while (summary := self._config.get(scorer)) is None and time.monotonic() < until:
            if self._ending.wait(_LOOK_EVERY):
                break
        return summary

    def _try(self, task: AnyTask, stage: Stage, cycle: AgentCycle, work: Callable[[], str]) -> str:
        """Try a stage once. Raises CycleError, or Celery's Retry for another try after `cycle.pause`."""
        if task.request.retries:
            # A task that runs within another one is tried again at once.
            self._ending.wait(cycle.pause)
        try:
            return work()
        except CycleError as error:
            _free(error)
            failure = error
        except BaseException as error:
            # This includes what sys.exit() raises in a plug-in: the cycle would have no result.
            log.exception("stage failed unexpectedly", stage=stage, scorer=cycle.scorer, run=cycle.run_id)
            _free(error)
            failure = CycleError(stage, "internal_error", "a mistake in the agent; its log has the details")
        cycle.failure = failure
        pause = self._pause(task.request.retries, cycle, failure)
        if pause is None:
            raise failure
        cycle.pause = pause
        cycle.counts["retries"] = cycle.counts.get("retries", 0) + 1
        raise task.retry(exc=failure, countdown=pause) from None

    def _pause(self, tries: int, cycle: AgentCycle, failure: CycleError) -> float | None:
        """Return seconds until another try; None if that cannot help, or if there is no time for it."""
        if not failure.retryable or tries >= cycle.summary.max_retries or self._ending.is_set():
            return None
        # Exponential, with jitter: scorers that failed together are not tried again together.
        # At most 10 seconds, unless the server names a time.
        longest = min(FIRST_PAUSE * 2.0**tries, 10.0)
        pause = longest * random.uniform(0.5, 1.0) if failure.retry_after is None else failure.retry_after  # noqa: S311
        # After a time-out another try needs a whole time-out, or it would only fail sooner.
        needed = cycle.summary.timeout_seconds if failure.reason == "timeout" else _SHORTEST_TRY
        return pause if time.monotonic() + pause + needed <= cycle.deadline else None

    def _fail(self, cycle: AgentCycle) -> None:
        """Count and send why there is no score."""
        failure = cycle.failure or CycleError("fetch", "internal_error", "a mistake in the agent; see its log")
        self._metrics.failed(cycle.summary.score_name, failure.stage, failure.reason)
        self._running.leave(cycle)
        self._without_score(cycle.scorer, cycle.run_id, "error", failure, cycle)

    def _without_score(
        self, scorer: str, run_id: str, outcome: Outcome, why: CycleError, cycle: AgentCycle | None = None
    ) -> str:
        try:
            self._outbox.send(self._result(scorer, run_id, outcome, cycle, why), time.monotonic() + 30.0)
        except CycleError as error:
            # The hub will declare the cycle lost; this line has the content of its result.
            log_fields = {"outcome": outcome, "result_reason": why.reason, "reason": error.reason}
            log.error("result not sent", scorer=scorer, run=run_id, **log_fields)
        return f"{outcome}: {why.reason}"

    def _result(
        self, scorer: str, run_id: str, outcome: Outcome, cycle: AgentCycle | None, why: CycleError | None = None
    ) -> Result:
        """Return the result of a cycle; `why` it has no score."""
        response = None if cycle is None or why is not None else cycle.response
        result_fields: dict[str, Any] = {}
        if why is not None:
            result_fields |= {"stage": why.stage, "reason": why.reason, "message": why.message}
        if response is not None:
            result_fields |= {"results": response.results, "refused": dict(response.refused), "message": response.note}
        if cycle is not None:
            # Microseconds are enough, and shorter.
            timings = {name: round(value, 6) for name, value in cycle.timings.items()}
            result_fields |= {"timings": timings, "counts": cycle.counts}
        # model_construct: everything in a response was validated when it was read.
        return Result.model_construct(
            cluster=self._settings.cluster,
            scorer=scorer,
            run=run_id,
            at=time.time() if cycle is None or response is None else cycle.scored_at,
            outcome=outcome,
            agent=self._agent,
            version=self._version,
            **result_fields,
        )


def _free(error: BaseException | None) -> None:
    """Free what was in memory where it failed.

    An error keeps the frames that it went through until Python looks for garbage, and some of them have a whole answer.
    """
    freed: set[int] = set()
    # A plug-in's errors may refer to each other.
    while error is not None and id(error) not in freed:
        traceback.clear_frames(error.__traceback__)
        freed.add(id(error))
        error = error.__context__


class AgentTask(Task):  # type: ignore[type-arg]
    """A task that runs in an agent. A failure is an expected outcome, and the task has no stored result."""

    abstract = True
    throws = (CycleError,)
    ignore_result = True
    #: Retries end with their cycle.
    max_retries = None
    #: Runs this process's cycles; `dsf.agent.main` sets it when the worker starts.
    runner: CycleRunner


@shared_task(base=AgentTask, bind=True, name=FETCH_TASK)
def fetch(self: AgentTask, cycle: AgentCycle) -> AgentCycle:
    """Query the source of the cycle's scorer for its time series."""
    return self.runner.fetch(self, cycle)


@shared_task(base=AgentTask, bind=True, name=SCORE_TASK)
def score(self: AgentTask, cycle: AgentCycle) -> AgentCycle:
    """Send the time series to the scoring API of the cycle's scorer."""
    return self.runner.score(self, cycle)


@shared_task(base=AgentTask, bind=True, name=PUBLISH_TASK)
def publish(self: AgentTask, cycle: AgentCycle) -> str:
    """Put the scores on the agent's own /metrics and send one signed message to the hub."""
    return self.runner.publish(self, cycle)


@shared_task(base=AgentTask, bind=True, Strategy="dsf.agent.ticks:accept", name=CYCLE_TASK)
def cycle(self: AgentTask, scorer: str, run_id: str | None = None, deadline: float | None = None) -> str:
    """Score `scorer` now: a chain of fetch, score and publish, applied in this thread. Returns the outcome.

    `deadline` is in unix seconds by the hub's clock. A call by hand has neither that nor a run id:
    `celery -A dsf.celery call dsf.cycle --args '["sample-scorer"]' --queue spoke.<cluster>`.
    """
    refusal: CycleError | None = self.request.get(REFUSAL)
    return self.runner.run(scorer, run_id, deadline, (fetch, score, publish), refusal)
