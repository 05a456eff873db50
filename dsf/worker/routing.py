"""Celery's router, which decides about the queue of each call."""

from __future__ import annotations

from typing import Any

from dsf.errors import RoutingError
from dsf.messages import CYCLE_TASK, STAGE_TASKS


def route(name: str, args: Any, kwargs: Any, options: dict[str, Any], task: Any = None, **_: Any) -> None:
    """Reject calls of stages, and calls of a cycle without the queue of a cluster.

    Returns None, so that Celery uses the queue of the call. Raises RoutingError in the caller's process.
    """
    del args, kwargs, task
    if name in STAGE_TASKS:
        raise RoutingError(f"{name} runs within {CYCLE_TASK}: call that with queue='spoke.<cluster>'")
    if name == CYCLE_TASK and "queue" not in options:
        raise RoutingError(f"{name} needs the queue of a cluster: queue='spoke.<cluster>', or --queue of `celery call`")
