"""Second stage of a cycle: ask the scoring API."""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from dsf.agent import runtime
from dsf.messages import SCORE_TASK
from dsf.tasks.base import StageTask


@shared_task(base=StageTask, bind=True, name=SCORE_TASK)
def score(self: Task[Any, Any], scorer: str, run_id: str) -> str:
    """Send what fetch got to the scoring API of `scorer`."""
    del scorer, run_id
    return runtime.current().cycles.score(self)
