"""First stage of a cycle: ask the source."""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from dsf.agent import runtime
from dsf.messages import FETCH_TASK
from dsf.tasks.base import StageTask


@shared_task(base=StageTask, bind=True, name=FETCH_TASK)
def fetch(self: Task[Any, Any], scorer: str, run_id: str) -> str:
    """Ask the source of `scorer` for its time series."""
    del scorer, run_id
    return runtime.current().cycles.fetch(self)
