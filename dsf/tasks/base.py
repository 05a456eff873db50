"""What the tasks of an agent have in common."""

from __future__ import annotations

from celery import Task

from dsf.errors import CycleError


class AgentTask(Task):  # type: ignore[type-arg]
    """A task that runs in an agent. It fails as expected, and has no stored result."""

    abstract = True
    throws = (CycleError,)
    ignore_result = True
    #: Retries end with their cycle.
    max_retries = None


class StageTask(AgentTask):
    """A stage: the task of its cycle calls it, and no message may."""

    abstract = True
    Strategy = "dsf.agent.ticks:forbid"


class CycleTask(AgentTask):
    """What ticks call."""

    abstract = True
    Strategy = "dsf.agent.ticks:accept"
