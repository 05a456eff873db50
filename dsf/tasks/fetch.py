"""First stage of a cycle: ask the source."""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from dsf.agent import runtime
from dsf.agent.stagetask import StageTask
from dsf.errors import CycleError
from dsf.messages import FETCH_TASK


@shared_task(base=StageTask, bind=True, name=FETCH_TASK, throws=(CycleError,), max_retries=None, ignore_result=True)
def fetch(self: Task[Any, Any], scorer: str, run_id: str | None = None) -> str:
    """Ask the source of `scorer` for its time series; score and publish follow by themselves.

    By hand: `DSF_ROLE=cli celery -A dsf.celery call dsf.fetch --args '["sample-scorer"]' --queue spoke.<cluster>`.
    """
    return runtime.current().flow.fetch(self, scorer, run_id)
