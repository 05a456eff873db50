"""The tasks of an agent: the cycle, which a tick starts, and its three stages, which the cycle runs as a chain."""

from __future__ import annotations

from celery import Task, shared_task

from dsf.agent.cycles import AgentCycle, CycleRunner
from dsf.agent.ticks import REFUSAL
from dsf.errors import CycleError
from dsf.messages import CYCLE_TASK, FETCH_TASK, PUBLISH_TASK, SCORE_TASK


class AgentTask(Task):  # type: ignore[type-arg]
    """Base class of the tasks of an agent. A failure is an expected outcome, and no result is stored."""

    abstract = True
    throws = (CycleError,)
    ignore_result = True
    #: Celery does not limit the retries, because they end at the deadline of the cycle.
    max_retries = None
    #: Runs the cycles of this process. `dsf.agent.main` sets it when the worker starts.
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
    """Expose the scores on the agent's /metrics, and send one signed message to the hub."""
    return self.runner.publish(self, cycle)


@shared_task(base=AgentTask, bind=True, Strategy="dsf.agent.ticks:accept", name=CYCLE_TASK)
def cycle(self: AgentTask, scorer: str, run_id: str | None = None, deadline: float | None = None) -> str:
    """Score `scorer` now by a chain of fetch, score and publish in this thread. Return the outcome.

    `deadline` is in unix seconds by the hub's clock. A call by hand has neither deadline nor run id:
    `celery -A dsf.celery call dsf.cycle --args '["sample-scorer"]' --queue spoke.<cluster>`.
    """
    refusal: CycleError | None = self.request.get(REFUSAL)
    return self.runner.run(scorer, run_id, deadline, (fetch, score, publish), refusal)
