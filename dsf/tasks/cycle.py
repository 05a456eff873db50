"""The tasks of an agent: a cycle, which a tick starts, and its three stages, which the cycle calls."""

from __future__ import annotations

from celery import Task, shared_task

from dsf.agent.cycles import AgentCycle, CycleRunner
from dsf.agent.ticks import REFUSAL
from dsf.errors import CycleError
from dsf.messages import CYCLE_TASK, FETCH_TASK, PUBLISH_TASK, SCORE_TASK


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
