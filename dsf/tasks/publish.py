"""Last stage of a cycle: show the scores and send them to the hub."""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from dsf.agent import runtime
from dsf.agent.stagetask import StageTask
from dsf.errors import CycleError
from dsf.messages import PUBLISH_TASK


@shared_task(base=StageTask, bind=True, name=PUBLISH_TASK, throws=(CycleError,), max_retries=None, ignore_result=True)
def publish(self: Task[Any, Any], scorer: str, run_id: str) -> str:
    """Put the scores on the agent's own /metrics and send one signed message to the hub."""
    return runtime.current().flow.publish(self, scorer, run_id)
