"""The events of a worker for Flower, sent in batches about once a second.

Celery sends each event separately from its main loop. With 100 ms to the hub, the events of a cycle would allow less
than two cycles per second. On the hub they would cost a quarter of the results worker's CPU. Celery also sends no
events of tasks that did not come through a queue. No part of the program waits for events.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import kombu
import redis
from celery import bootsteps, signals
from celery.app import events as celery_events
from celery.events.dispatcher import EventDispatcher
from celery.events.receiver import EventReceiver
from celery.utils.saferepr import saferepr
from celery.utils.sysinfo import load_average
from celery.worker import state
from kombu import serialization
from kombu.utils.json import dumps

import dsf.log
from dsf.errors import AccessError
from dsf.process.threads import SupervisedThread

log = dsf.log.get(__name__)

#: Seconds between heartbeats, which cross the WAN. Flower lists a worker that started earlier after at most this time,
#: or with the worker's next task.
HEARTBEAT_INTERVAL: Final = 30.0
#: Seconds for which events are gathered. A longer delay would be noticeable in Flower.
_GATHER_SECONDS: Final = 1.0
#: Maximum number of gathered events, far above the number in _GATHER_SECONDS. A thread that exceeds it sends them all.
_MAX_GATHERED_EVENTS: Final = 1000
#: Maximum bytes of a message with events. Flower drops larger messages, because anyone with a cluster's credential can
#: publish.
MAX_EVENT_BYTES: Final = 64 * 1024
#: Maximum characters of the events in one message. The message quotes them a second time, and must stay below
#: MAX_EVENT_BYTES.
_MAX_BATCH_CHARACTERS: Final = 40_000

#: Kombu's name for content that is JSON already.
_WRITTEN: Final = "written-json"
serialization.register(_WRITTEN, str, None, "application/json", "utf-8")

# The overridden members are not in the published types.
_Producer: Any = kombu.Producer
_Dispatcher: Any = EventDispatcher
_Receiver: Any = EventReceiver


class GatheredEvents(bootsteps.StartStopStep):
    """Sends the events and heartbeats of a worker from one thread. Thread-safe.

    This includes the events of tasks that are called in place (`Task.apply`).
    """

    requires = ("celery.worker.consumer.events:Events",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        # Celery's event dispatcher. Celery makes another one after each lost connection.
        self._dispatcher: Any = None
        self._has_events = threading.Event()
        self._stop = threading.Event()
        self._thread = SupervisedThread(self._run, "dsf-events")
        signals.task_prerun.connect(self._on_start, weak=False)
        signals.task_success.connect(self._on_success, weak=False)
        signals.task_failure.connect(self._on_failure, weak=False)
        signals.task_retry.connect(self._on_retry, weak=False)

    def start(self, consumer: Any) -> None:
        """Use the event dispatcher of a new connection from now on."""
        threads, wake = consumer.pool.num_processes, consumer.call_soon

        def on_buffered() -> None:
            self._has_events.set()
            if len(state.reserved_requests) >= threads - 1:
                # Celery takes no tick while all threads are busy. Wake the main loop, because it does not notice when
                # a thread becomes free.
                wake(lambda: None)

        dispatcher = consumer.event_dispatcher
        dispatcher.on_send_buffered, dispatcher.buffer_limit = on_buffered, _MAX_GATHERED_EVENTS
        # Close the connection that the event channel has opened for reading, because nothing reads from it.
        if dispatcher.publisher is not None:
            dispatcher.publisher.channel.async_pool.disconnect()
        is_first, self._dispatcher = self._dispatcher is None, dispatcher
        if is_first:
            self._thread.start()
        self._has_events.set()

    def stop(self, consumer: Any) -> None:
        """Do nothing after a lost connection, because events wait for the next one."""

    def shutdown(self, consumer: Any) -> None:
        """Send the last events."""
        del consumer
        self._stop.set()
        self._has_events.set()
        if self._dispatcher is not None:
            self._thread.join(5.0)

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
        """Send an event of a task that was called in place. Celery itself sends events of tasks from a queue."""
        if self._dispatcher is not None and request.is_eager:
            self._dispatcher.send(kind, uuid=request.id, **fields)

    def _run(self) -> None:
        announced_dispatcher: Any = None
        heartbeat_at = 0.0
        while not self._stop.is_set():
            self._has_events.wait(max(0.0, heartbeat_at - time.monotonic()))
            self._stop.wait(_GATHER_SECONDS)
            self._has_events.clear()
            dispatcher = self._dispatcher
            if dispatcher is not announced_dispatcher or time.monotonic() >= heartbeat_at:
                kind = "worker-heartbeat" if dispatcher is announced_dispatcher else "worker-online"
                self._send_heartbeat(dispatcher, kind)
                announced_dispatcher, heartbeat_at = dispatcher, time.monotonic() + HEARTBEAT_INTERVAL
            # The dispatcher drops the events that it cannot send.
            dispatcher.flush()
        self._dispatcher.flush()
        self._send_heartbeat(self._dispatcher, "worker-offline")

    def _send_heartbeat(self, dispatcher: Any, kind: str) -> None:
        dispatcher.send(
            kind,
            freq=HEARTBEAT_INTERVAL,
            active=len(state.active_requests),
            processed=sum(state.total_count.values()),
            loadavg=load_average(),
            **state.SOFTWARE_INFO,
        )


class EventProducer(_Producer):  # type: ignore[misc]
    """Sends events for Flower, or drops them without a retry.

    Celery's own producer retries heartbeats in the worker's main loop until Redis is back. During that time the worker
    neither reconnects nor handles a shutdown. Celery also keeps any number of unsent events, and sends them as one
    message.
    """

    _has_warned = False

    def publish(self, body: Any, *args: Any, **options: Any) -> None:
        """Send an event or a list of events, in messages that Flower accepts. Events after an error are dropped."""
        options |= {"retry": False, "serializer": _WRITTEN}
        events = body if isinstance(body, list) else [body]
        try:
            for message in _batch_events(dumps(event) for event in events):
                super().publish(message, *args, **options)
        except Exception as error:  # noqa: BLE001 (events must not block or end anything)
            # Do not log connection errors, because Celery logs them.
            if not isinstance(error, redis.ConnectionError | redis.TimeoutError) and not self._has_warned:
                log.warning("events for Flower are refused and dropped", error=str(error))
                self._has_warned = True


class BoundedEventDispatcher(_Dispatcher):  # type: ignore[misc]
    """Celery's event dispatcher, with EventProducer as its producer."""

    def enable(self) -> None:
        """Start to send events."""
        super().enable()
        self.producer = EventProducer(
            self.channel or self.connection, exchange=self.exchange, serializer=self.serializer, auto_declare=False
        )


class PermittedEventReceiver(_Receiver):  # type: ignore[misc]
    """Receives events until Redis denies them. Celery's receiver would retry for ever, as for a lost connection."""

    def consume(self, *args: Any, **options: Any) -> Iterator[Any]:
        """Yield as Celery does. Raises AccessError if this process's user of Redis may not receive events."""
        try:
            yield from super().consume(*args, **options)
        except redis.exceptions.NoPermissionError as error:
            raise AccessError(f"this user of Redis may not receive events; Flower shows them ({error})", 403) from error


class Events(celery_events.Events):
    """Makes Celery use the event dispatcher and the event receiver of this module."""

    dispatcher_cls = f"{__name__}:{BoundedEventDispatcher.__name__}"
    receiver_cls = f"{__name__}:{PermittedEventReceiver.__name__}"


def _batch_events(events: Iterable[str]) -> Iterator[str]:
    """Yield JSON lists of the events, in order. Each list fits into a message."""
    batch: list[str] = []
    size = 0
    for event in events:
        if batch and size + len(event) > _MAX_BATCH_CHARACTERS:
            yield f"[{','.join(batch)}]"
            batch, size = [], 0
        batch.append(event)
        size += len(event)
    if batch:
        yield f"[{','.join(batch)}]"
