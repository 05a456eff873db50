"""The cycles of an agent: each runs its three stages, one after another, in the thread of its tick.

Every cycle sends exactly one result to the hub. If the agent dies before that, the hub declares the cycle lost.
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

from celery import Task, chain

import dsf.log
from dsf.agent.config import AgentConfig
from dsf.agent.fairqueue import FairQueue
from dsf.agent.metrics import AgentMetrics
from dsf.agent.outbox import Outbox
from dsf.agent.resultmemory import ResultMemory
from dsf.api.score import compute_validity
from dsf.api.scoringresponse import ScoringResult
from dsf.api.summary import ScorerSummary
from dsf.cycle.composite import LastResults
from dsf.cycle.stages import Cycle, FilePayload, Stages, store_payload
from dsf.errors import CycleError
from dsf.http.deadline import end_exchanges
from dsf.messages import Outcome, Result, Stage, make_run_id, run_time
from dsf.reasons import SkipReason
from dsf.settings import Settings
from dsf.sources.responsestorage import ResponseBudget, ResponseStorage

log = dsf.log.get(__name__)

AnyTask = Task[Any, Any]

#: Seconds between two attempts to find the summary of an unknown scorer.
_SUMMARY_POLL_SECONDS: Final = 1.0
#: Maximum seconds to wait for the summary of an unknown scorer. Its tick may arrive before the ConfigMap.
_MAX_SUMMARY_WAIT: Final = 5.0
#: Minimum seconds that must be left for another try.
_MIN_TRY_SECONDS: Final = 0.5
#: Maximum number of consecutive ticks that are skipped because the scorer's last cycle took too long. The next one
#: runs.
_MAX_SKIPPED_TICKS: Final = 5
#: Seconds before the second try of a stage. The pause doubles with each try, up to _MAX_PAUSE.
FIRST_PAUSE_SECONDS: Final = 0.5
_MAX_PAUSE: Final = 10.0
#: Seconds between two checks for the inputs of a composite during a pause.
_INPUT_POLL_SECONDS: Final = 0.02
#: Number of run ids that are stored per scorer to detect duplicate ticks. Simultaneous ticks begin in any order.
_MAX_RECENT_RUNS: Final = 8
#: Seconds after the deadline within which every wait of a cycle ends. A cycle that runs longer hangs.
_MAX_OVERRUN: Final = 5.0
#: Seconds within which the result of a cycle without scores must be sent.
_SEND_SECONDS: Final = 30.0


@dataclass(slots=True)
class AgentCycle(Cycle):
    """The state of a cycle that runs in this agent."""

    #: Seconds until the next tick. An override by a user may exceed the scorer's interval.
    interval: float = 0.0
    payload: bytes | FilePayload = b""
    #: Seconds before the next try, and the error of the last one.
    pause: float = 0.0
    failure: CycleError | None = None
    #: Short description of the outcome of the last successful stage, for Flower.
    progress: str = ""

    def __repr__(self) -> str:
        """Return scorer, run id and progress, which Flower shows as argument and result of each stage."""
        return f"{self.scorer} {self.run_id}{f': {self.progress}' if self.progress else ''}"


class RunningCycles:
    """Tracks running cycles and the duration of each scorer's last cycle. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Run id -> cycle, including cycles that run beyond their deadline.
        self._cycles: dict[str, Cycle] = {}
        #: Scorer -> run ids of its most recent ticks.
        self._recent_runs: dict[str, deque[str]] = {}
        #: Scorer -> seconds of its last successful cycle, and number of consecutive ticks that were too late for it.
        self._last_durations: dict[str, float] = {}
        self._skipped_ticks: dict[str, int] = {}

    def register_run(self, scorer: str, run_id: str) -> bool:
        """Store the run id. Return False if the scorer already had it, because a message may arrive twice."""
        with self._lock:
            recent_runs = self._recent_runs.setdefault(scorer, deque(maxlen=_MAX_RECENT_RUNS))
            if run_id in recent_runs:
                return False
            recent_runs.append(run_id)
            return True

    def has_time(self, scorer: str, remaining_seconds: float, interval: float) -> bool:
        """True if a cycle may begin with `remaining_seconds` left of its interval in seconds.

        If the last successful cycle took longer than the remaining time, the next one is skipped, because it would
        probably end too late and block a thread that another cycle needs. The last cycle may have been unusually slow.
        Therefore a cycle always begins if at least half of its interval is left, or after _MAX_SKIPPED_TICKS
        consecutive skipped ticks.
        """
        with self._lock:
            is_late = remaining_seconds <= min(self._last_durations.get(scorer, 0.0), max(0.0, interval) / 2)
            self._skipped_ticks[scorer] = self._skipped_ticks.get(scorer, 0) + 1 if is_late else 0
            if self._skipped_ticks[scorer] > _MAX_SKIPPED_TICKS:
                self._skipped_ticks[scorer] = 0
                return True
            return not is_late

    def store_duration(self, scorer: str, seconds: float) -> None:
        """Store the duration of a successful cycle."""
        with self._lock:
            self._last_durations[scorer] = seconds

    def register_cycle(self, cycle: Cycle) -> bool:
        """Register this cycle as running. Return False if another one of its scorer is still running, or hangs."""
        now = time.monotonic()
        with self._lock:
            for running_cycle in self._cycles.values():
                if running_cycle.scorer != cycle.scorer:
                    continue
                # A cycle may overlap one that is past its deadline and about to end. A hanging cycle prevents further
                # ones, because a cycle for each tick would soon block all threads.
                if not running_cycle.deadline <= now <= running_cycle.deadline + _MAX_OVERRUN:
                    return False
            self._cycles[cycle.run_id] = cycle
            return True

    def remove_cycle(self, cycle: Cycle) -> None:
        """Remove a cycle that has ended, so that the next one of its scorer may begin."""
        with self._lock:
            self._cycles.pop(cycle.run_id, None)

    def end_removed(self, scorers: Container[str]) -> list[Cycle]:
        """End the cycles of all scorers but these by setting their deadline to now. Return the ended cycles."""
        now = time.monotonic()
        with self._lock:
            ended_cycles = [
                cycle for cycle in self._cycles.values() if cycle.scorer not in scorers and cycle.deadline > now
            ]
            for cycle in ended_cycles:
                cycle.deadline = now
            for scorer in [scorer for scorer in self._recent_runs if scorer not in scorers]:
                del self._recent_runs[scorer]
                self._last_durations.pop(scorer, None)
                self._skipped_ticks.pop(scorer, None)
        return ended_cycles


class CycleRunner:
    """Runs cycles and sends their results. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        config: AgentConfig,
        stages: Stages,
        outbox: Outbox,
        metrics: AgentMetrics,
        *,
        stopping: threading.Event | None = None,
        hub_time: Callable[[], float] = time.time,
        results: LastResults | None = None,
        on_success: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        """`stopping` is set at shutdown. No stage is retried then. `hub_time` returns unix seconds by the hub's clock.
        `results` stores the last results of each scorer. `on_success` is called with the scorer of each successful
        cycle and the seconds until its next cycle is due."""
        self._settings = settings
        self._config = config
        self._stages = stages
        self._outbox = outbox
        self._metrics = metrics
        self._results = results or LastResults()
        self._result_memory = ResultMemory(config.get_namespaces)
        # Seconds between two log lines about the results of a scorer.
        self._throttle = dsf.log.Throttle(600.0)
        self._on_success = on_success
        #: Unix seconds by the hub's clock.
        self.hub_time = hub_time
        self._running = RunningCycles()
        # A plug-in's responses and its series stay in memory, and each of them may be as large as one cycle allows.
        self._budget = ResponseBudget(2 * settings.max_source_bytes)
        #: The ticks that wait for a thread.
        self.tick_queue = FairQueue(settings.agent_concurrency, config.get_namespaces)
        self._agent = socket.gethostname()
        self._version = metadata.version("dynamic-scoring-framework")
        self._stopping = stopping or threading.Event()

    def run(
        self,
        scorer: str,
        run_id: str | None,
        deadline: float | None,
        stages: tuple[AnyTask, ...],
        refusal: CycleError | None = None,
    ) -> str:
        """Run one cycle as a chain of the tasks of its stages, and return its outcome. Skip it with a `refusal`.

        `deadline`, in unix seconds by the hub's clock, is the time at which the next cycle may begin. A call by hand
        has neither deadline nor run id. Raises CycleError for a cycle without a score, after its result is sent.
        """
        # The id is made by the hub's clock because the hub refuses a run id that sorts before the last one.
        run_id = run_id or make_run_id(self.hub_time())
        if not self._running.register_run(scorer, run_id):
            return "duplicate"
        if refusal is not None:
            return self._send_failure(scorer, run_id, "skipped", refusal)
        remaining_seconds = 0.0 if deadline is None else deadline - self.hub_time()
        if deadline is not None and (
            remaining_seconds <= 0 or not self._running.has_time(scorer, remaining_seconds, deadline - run_time(run_id))
        ):
            message = (
                "its tick waited in the queue until no time was left for a cycle: the agent was away, or its threads "
                "were busy"
            )
            return self._send_failure(scorer, run_id, "skipped", CycleError("", SkipReason.EXPIRED, message))
        summary = self._wait_for_summary(scorer, deadline)
        if summary is None:
            message = f"scorer {scorer!r} is not in the configuration that was delivered to this cluster"
            if problem := self._config.problem:
                message = f"the agent cannot read the configuration of this cluster: {problem}"
            error = CycleError("fetch", "unknown_scorer", message)
            self._send_failure(scorer, run_id, "error", error)
            raise error
        cycle = self._make_cycle(run_id, summary, deadline)
        if not self._running.register_cycle(cycle):
            message = f"another cycle of {summary.score_name!r} is still running on this cluster"
            return self._send_failure(scorer, run_id, "skipped", CycleError("", SkipReason.OVERLAP, message))
        first_stage, *further_stages = stages
        try:
            # The chain runs in this thread, with the retries that `_try_stage` requests, and raises the error of the
            # failed stage.
            outcome: str = chain(first_stage.s(cycle), *(task.s() for task in further_stages)).apply().get()
        except Exception as error:
            _clear_frames(error)
            self._report_failure(cycle)
            raise
        else:
            self._on_success(scorer, cycle.interval)
            return outcome
        finally:
            self._running.remove_cycle(cycle)
            if not isinstance(cycle.payload, bytes):
                cycle.payload.close()
            # Celery's results of the chain and the cycle refer to each other until the next garbage collection.
            cycle.payload, cycle.response = b"", None

    def fetch(self, task: AnyTask, cycle: AgentCycle) -> AgentCycle:
        """Query the source, and store the scoring request in the cycle. Raises CycleError, or Celery's Retry."""

        def fetch_payload() -> str:
            folder: Path | None = self._settings.agent_spool_dir
            with cycle.storage:
                try:
                    payload = self._stages.fetch(cycle)
                except BaseException as error:
                    # Clear the frames before the memory counts as free, because they hold a response.
                    _clear_frames(error)
                    raise
                try:
                    cycle.payload = store_payload(folder, payload.pieces)
                except OSError as error:
                    message = f"cannot write {payload.size} bytes into {folder or 'the temp folder'}: {error.strerror}"
                    raise CycleError("fetch", "spool_failed", message) from None
            return f"{payload.series} series, {payload.received} bytes"

        cycle.progress = self._try_stage(task, "fetch", cycle, fetch_payload)
        return cycle

    def score(self, task: AnyTask, cycle: AgentCycle) -> AgentCycle:
        """Send the scoring request, and store the response in the cycle. Raises CycleError, or Celery's Retry."""

        def request_scores() -> str:
            self._stages.score(cycle, cycle.payload)
            return f"{cycle.counts['results']} results"

        cycle.progress = self._try_stage(task, "score", cycle, request_scores)
        return cycle

    def publish(self, task: AnyTask, cycle: AgentCycle) -> str:
        """Expose the scores on the agent's /metrics, send the result to the hub, and return the outcome."""

        def publish_results() -> str:
            started_at = time.monotonic()
            response = cycle.response
            if response is None:
                raise RuntimeError("the cycle was not scored")
            interval, declared_interval = round(cycle.interval), cycle.summary.scoring_interval
            validity = compute_validity(
                interval or declared_interval, cycle.summary.validity_seconds, declared_interval
            )
            self._store_results(cycle, response.results, validity, interval)
            outcome: Outcome = "partial" if response.refusal_counts else "ok" if response.results else "empty"
            # The duration in the result excludes the sending, because the result is signed before it is sent.
            cycle.timings["publish"] = time.monotonic() - started_at
            result = self._make_result(cycle.scorer, cycle.run_id, outcome, cycle)
            # This duration excludes pauses between tries and the wait for a slow hub.
            self._running.store_duration(cycle.scorer, sum(cycle.timings.values()))
            # The cycle ends before the hub can read its result, because a reader may request the next cycle
            # immediately.
            self._running.remove_cycle(cycle)
            self._outbox.send(result, cycle.deadline)
            self._metrics.on_timed(cycle.summary.score_name, "publish", time.monotonic() - started_at)
            self._metrics.count_success(cycle.summary.score_name, response.refusal_counts.items())
            return outcome

        return self._try_stage(task, "publish", cycle, publish_results)

    def _store_results(
        self, cycle: AgentCycle, results: Sequence[ScoringResult], validity: float, interval: int
    ) -> None:
        """Store the results for /metrics and for composites if the memory allows. The hub gets them anyway."""
        if self._result_memory.reserve(cycle.scorer, results):
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

    def end_removed(self, scorers: Container[str]) -> None:
        """End the cycles of all scorers but these, and drop their expired results."""
        self._results.drop_expired(scorers)
        for cycle in self._running.end_removed(scorers):
            log.info("cycle ended, its scorer was removed", scorer=cycle.scorer, run=cycle.run_id)
            end_exchanges(cycle)

    def _make_cycle(self, run_id: str, summary: ScorerSummary, deadline: float | None) -> AgentCycle:
        """Return a new cycle. `deadline` is that of its tick, or None for a call by hand."""
        declared_interval = float(max(summary.scoring_interval, 1))
        remaining_seconds = declared_interval if deadline is None else deadline - self.hub_time()
        # A tick may shorten a cycle. A deadline far in the future must not block the scorer, so a cycle takes at most
        # the scorer's interval or three time-outs.
        max_seconds = max(declared_interval, 3 * summary.timeout_seconds)
        interval = declared_interval if deadline is None else max(declared_interval, deadline - run_time(run_id))
        return AgentCycle(
            summary.name,
            run_id,
            summary,
            time.monotonic() + min(remaining_seconds, max_seconds),
            storage=ResponseStorage(self._budget, self._settings.agent_spool_dir),
            interval=interval,
        )

    def _wait_for_summary(self, scorer: str, deadline: float | None) -> ScorerSummary | None:
        """Return the scorer's summary, or None if it does not arrive in time."""
        wait_until = time.monotonic() + _MAX_SUMMARY_WAIT
        if deadline is not None:
            remaining_seconds = deadline - self.hub_time()
            wait_until = min(
                wait_until, time.monotonic() + remaining_seconds - _SUMMARY_POLL_SECONDS - _MIN_TRY_SECONDS
            )
        while (summary := self._config.get(scorer)) is None and time.monotonic() < wait_until:
            if self._stopping.wait(_SUMMARY_POLL_SECONDS):
                break
        return summary

    def _try_stage(self, task: AnyTask, stage: Stage, cycle: AgentCycle, run_stage: Callable[[], str]) -> str:
        """Try a stage once, and return its progress or outcome.

        Raises CycleError, or Celery's Retry for another try after `AgentCycle.pause` seconds.
        """
        if task.request.retries:
            # Celery retries a task that runs within another one without its countdown, so the pause is made here.
            self._pause(cycle)
        try:
            return run_stage()
        except CycleError as error:
            _clear_frames(error)
            failure = error
        except BaseException as error:
            # SystemExit is caught, too, because a plug-in may call sys.exit(), and every cycle must have a result.
            log.exception("stage failed unexpectedly", stage=stage, scorer=cycle.scorer, run=cycle.run_id)
            _clear_frames(error)
            failure = CycleError(stage, "internal_error", "an internal error of the agent; its log has the details")
        cycle.failure = failure
        pause = self._compute_retry_pause(task.request.retries, cycle, failure)
        if pause is None:
            raise failure
        cycle.pause = pause
        cycle.counts["retries"] = cycle.counts.get("retries", 0) + 1
        raise task.retry(exc=failure, countdown=pause) from None

    def _pause(self, cycle: AgentCycle) -> None:
        """Pause before a retry, at most until the missing inputs of a composite are there or the agent stops."""
        if cycle.failure is None or cycle.failure.reason != "missing_input":
            self._stopping.wait(cycle.pause)
            return
        ends_at = time.monotonic() + cycle.pause
        while (remaining_seconds := ends_at - time.monotonic()) > 0 and not self._results.has_inputs(cycle.summary):
            if self._stopping.wait(min(remaining_seconds, _INPUT_POLL_SECONDS)):
                break

    def _compute_retry_pause(self, tries: int, cycle: AgentCycle, failure: CycleError) -> float | None:
        """Return seconds until another try. Return None if a retry cannot succeed or if there is no time for it."""
        if not failure.retryable or tries >= cycle.summary.max_retries or self._stopping.is_set():
            return None
        # The pause grows exponentially up to _MAX_PAUSE, unless the server requests a pause. Jitter prevents
        # scorers that failed together from retrying together.
        max_pause = min(FIRST_PAUSE_SECONDS * 2.0**tries, _MAX_PAUSE)
        pause = failure.retry_after
        if pause is None:
            pause = max_pause * random.uniform(0.5, 1.0)  # noqa: S311
        # A retry after a time-out needs a whole time-out, because it would otherwise only fail sooner.
        needed_seconds = cycle.summary.timeout_seconds if failure.reason == "timeout" else _MIN_TRY_SECONDS
        return pause if time.monotonic() + pause + needed_seconds <= cycle.deadline else None

    def _report_failure(self, cycle: AgentCycle) -> None:
        """Count the failure of a cycle, and send its result."""
        failure = cycle.failure or CycleError("fetch", "internal_error", "an internal error of the agent; see its log")
        self._metrics.count_failure(cycle.summary.score_name, failure.stage, failure.reason)
        self._running.remove_cycle(cycle)
        self._send_failure(cycle.scorer, cycle.run_id, "error", failure, cycle)

    def _send_failure(
        self, scorer: str, run_id: str, outcome: Outcome, failure: CycleError, cycle: AgentCycle | None = None
    ) -> str:
        """Send the result of a cycle without a score, and return its outcome with the reason."""
        try:
            result = self._make_result(scorer, run_id, outcome, cycle, failure)
            self._outbox.send(result, time.monotonic() + _SEND_SECONDS)
        except CycleError as error:
            # The hub will declare the cycle lost. Only this log line has the content of its result.
            log_fields = {"outcome": outcome, "result_reason": failure.reason, "reason": error.reason}
            log.error("result not sent", scorer=scorer, run=run_id, **log_fields)
        return f"{outcome}: {failure.reason}"

    def _make_result(
        self, scorer: str, run_id: str, outcome: Outcome, cycle: AgentCycle | None, failure: CycleError | None = None
    ) -> Result:
        """Return the result of a cycle. `failure` tells why it has no score. `cycle` is None if it did not begin."""
        response = None if cycle is None or failure is not None else cycle.response
        result_fields: dict[str, Any] = {}
        if failure is not None:
            result_fields |= {"stage": failure.stage, "reason": failure.reason, "message": failure.message}
        if response is not None:
            result_fields |= {
                "results": response.results,
                "refused": dict(response.refusal_counts),
                "message": response.note,
            }
        if cycle is not None:
            # The timings are rounded to microseconds to shorten the message.
            timings = {name: round(value, 6) for name, value in cycle.timings.items()}
            result_fields |= {"timings": timings, "counts": cycle.counts}
        # model_construct skips the validation because the response was validated when it was parsed.
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


def _clear_frames(error: BaseException | None) -> None:
    """Clear the local variables in the tracebacks of an error and of its contexts.

    An error references the frames of its traceback until the next garbage collection, and some frames hold a whole
    response.
    """
    cleared_ids: set[int] = set()
    # The ids end the loop if errors of a plug-in refer to each other.
    while error is not None and id(error) not in cleared_ids:
        traceback.clear_frames(error.__traceback__)
        cleared_ids.add(id(error))
        error = error.__context__
