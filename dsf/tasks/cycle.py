"""A cycle: what one tick starts."""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from dsf.agent import runtime
from dsf.messages import CYCLE_TASK
from dsf.tasks.base import CycleTask
from dsf.tasks.fetch import fetch
from dsf.tasks.publish import publish
from dsf.tasks.score import score


@shared_task(base=CycleTask, bind=True, name=CYCLE_TASK)
def cycle(self: Task[Any, Any], scorer: str, run_id: str | None = None, deadline: float | None = None) -> str:
    """Score `scorer` now: fetch, score and publish, one after another, in this thread. Returns the outcome.

    `deadline` is in unix seconds by the hub's clock. A call by hand has neither that nor a run id:
    `celery -A dsf.celery call dsf.cycle --args '["sample-scorer"]' --queue spoke.<cluster>`.
    """
    del self
    return runtime.current().cycles.run(scorer, run_id, deadline, (fetch, score, publish))
