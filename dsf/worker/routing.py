"""Celery's router: which queue a call goes to."""

from __future__ import annotations

from typing import Any

from dsf.errors import RoutingError
from dsf.messages import CYCLE_TASK, STAGE_TASKS


def route(name: str, args: Any, kwargs: Any, options: dict[str, Any], task: Any = None, **_: Any) -> None:
    """A cycle runs on the cluster that its queue names; its stages are not called by messages.

    Raises RoutingError, at the call.
    """
    del args, kwargs, task
    if name in STAGE_TASKS:
        raise RoutingError(f"{name} runs within {CYCLE_TASK}: call that with queue='spoke.<cluster>'")
    if name == CYCLE_TASK and "queue" not in options:
        raise RoutingError(f"{name} needs the queue of a cluster: queue='spoke.<cluster>', or --queue of `celery call`")
