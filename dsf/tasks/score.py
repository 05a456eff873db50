"""Second stage of a cycle: ask the scoring API."""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from dsf.agent import runtime
from dsf.agent.stagetask import StageTask
from dsf.errors import CycleError
from dsf.messages import SCORE_TASK


@shared_task(base=StageTask, bind=True, name=SCORE_TASK, throws=(CycleError,), max_retries=None, ignore_result=True)
def score(self: Task[Any, Any], scorer: str, run_id: str) -> str:
    """Send what fetch got to the scoring API of `scorer`. If it is gone, it is fetched again."""
    return runtime.current().flow.score(self, scorer, run_id)
