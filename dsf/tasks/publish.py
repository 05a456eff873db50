"""Last stage of a cycle: show the scores and send them to the hub."""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from dsf.agent import runtime
from dsf.messages import PUBLISH_TASK
from dsf.tasks.base import StageTask


@shared_task(base=StageTask, bind=True, name=PUBLISH_TASK)
def publish(self: Task[Any, Any], scorer: str, run_id: str) -> str:
    """Put the scores on the agent's own /metrics and send one signed message to the hub."""
    del scorer, run_id
    return runtime.current().cycles.publish(self)
