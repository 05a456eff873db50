"""Shows Flower the tasks that run in this process without a message.

Celery sends events only of tasks that came through a queue. The same events are sent here, by the worker's own
dispatcher, whenever a task is called in place (`Task.apply`).
"""

from __future__ import annotations

from typing import Any

from celery import signals
from celery.utils.saferepr import saferepr


class TaskEvents:
    """Sends events from the signals of tasks that are called in place."""

    def __init__(self, worker: Any) -> None:
        """`worker` is Celery's; its dispatcher is another one after each loss of the connection."""
        self._worker = worker
        signals.task_prerun.connect(self._on_start)
        signals.task_success.connect(self._on_success)
        signals.task_failure.connect(self._on_failure)

    def _on_start(self, sender: Any, args: Any, kwargs: Any, **_: Any) -> None:
        request = sender.request
        self._send(
            "task-received",
            request,
            name=sender.name,
            args=saferepr(args),
            kwargs=saferepr(kwargs),
            root_id=request.root_id,
            parent_id=request.parent_id,
            retries=request.retries,
        )
        self._send("task-started", request)

    def _on_success(self, sender: Any, result: Any, runtime: float = 0.0, **_: Any) -> None:
        self._send("task-succeeded", sender.request, result=saferepr(result), runtime=runtime)

    def _on_failure(self, sender: Any, exception: Any, **_: Any) -> None:
        self._send("task-failed", sender.request, exception=saferepr(exception), traceback="")

    def _send(self, kind: str, request: Any, **fields: Any) -> None:
        # Missing while the worker is not connected.
        dispatcher = getattr(self._worker.consumer, "event_dispatcher", None)
        if request.is_eager and dispatcher is not None:
            dispatcher.send(kind, uuid=request.id, **fields)
