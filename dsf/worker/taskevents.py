"""Shows Flower the tasks that run in this process without a message.

Celery sends events only of tasks that came through a queue. The same events are sent here, by the worker's own
dispatcher, whenever a task is called in place (`Task.apply`).
"""

from __future__ import annotations

import threading
import time
from typing import Any

from celery import signals
from celery.utils.saferepr import saferepr
from celery.utils.sysinfo import load_average
from celery.worker import state

from dsf.process.threads import SupervisedThread

#: Seconds between heartbeats, which cross the WAN. Flower sees a worker that started earlier after at most this, or
#: with its next task.
HEARTBEAT_INTERVAL = 30.0


class TaskEvents:
    """Sends events from the signals of tasks that are called in place."""

    def __init__(self, worker: Any = None) -> None:
        """`worker` is Celery's; its dispatcher is another one after each loss of the connection."""
        self._worker = worker
        signals.task_prerun.connect(self._on_start, weak=False)
        signals.task_success.connect(self._on_success, weak=False)
        signals.task_failure.connect(self._on_failure, weak=False)
        signals.task_retry.connect(self._on_retry, weak=False)

    def dispatcher(self) -> Any:
        """Celery's dispatcher; None while the worker is not connected."""
        return getattr(self._worker.consumer, "event_dispatcher", None)

    def _on_start(self, sender: Any, args: Any, kwargs: Any, **_: Any) -> None:
        request = sender.request
        self._send(
            "task-received",
            request,
            name=sender.name,
            args=saferepr(tuple(args)),
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

    def _on_retry(self, sender: Any, request: Any, reason: Any, **_: Any) -> None:
        del sender
        self._send("task-retried", request, exception=saferepr(reason.exc), traceback="")

    def _send(self, kind: str, request: Any, **fields: Any) -> None:
        dispatcher = self.dispatcher()
        if dispatcher is not None and request.is_eager:
            dispatcher.send(kind, uuid=request.id, **fields)


class GatheredEvents(TaskEvents):
    """Sends all events of a worker, and its heartbeats, in batches from one thread.

    Celery would send them one by one from its main loop: at 100 ms to the hub, the events of a cycle would allow less
    than two cycles a second. Thread-safe.
    """

    def __init__(self) -> None:
        super().__init__()
        self._dispatcher: Any = None
        self._is_some = threading.Event()
        self._stop = threading.Event()
        self._is_started = False
        self._thread = SupervisedThread(self._run, "dsf-events")

    def attach(self, consumer: Any) -> None:
        """Use this consumer's dispatcher from now on."""
        threads, wake = consumer.pool.num_processes, consumer.call_soon

        def on_buffered() -> None:
            self._is_some.set()
            if len(state.reserved_requests) >= threads - 1:
                # Celery takes no tick while no thread is free, and does not notice when one is.
                wake(_nothing)

        dispatcher = consumer.event_dispatcher
        # The thread that adds this many sends them all: far more than come in that time.
        dispatcher.on_send_buffered, dispatcher.buffer_limit = on_buffered, 1000
        self._dispatcher = dispatcher
        if not self._is_started:
            self._is_started = True
            self._thread.start()
        self._is_some.set()

    def dispatcher(self) -> Any:
        """That of the current connection, or of the last one."""
        return self._dispatcher

    def stop(self) -> None:
        """Send the last events."""
        self._stop.set()
        self._is_some.set()
        # It sends the last events.
        self._thread.join(5.0)

    def _run(self) -> None:
        shown: Any = None
        beat_at = 0.0
        while not self._stop.is_set():
            self._is_some.wait(max(0.0, beat_at - time.monotonic()))
            self._stop.wait(0.25)
            self._is_some.clear()
            dispatcher = self._dispatcher
            if dispatcher is not shown or time.monotonic() >= beat_at:
                self._beat(dispatcher, "worker-heartbeat" if dispatcher is shown else "worker-online")
                shown, beat_at = dispatcher, time.monotonic() + HEARTBEAT_INTERVAL
            # It drops what it cannot send.
            dispatcher.flush()
        self._beat(self._dispatcher, "worker-offline")

    def _beat(self, dispatcher: Any, kind: str) -> None:
        dispatcher.send(
            kind,
            freq=HEARTBEAT_INTERVAL,
            active=len(state.active_requests),
            processed=sum(state.total_count.values()),
            loadavg=load_average(),
            **state.SOFTWARE_INFO,
        )


def _nothing() -> None:
    pass
