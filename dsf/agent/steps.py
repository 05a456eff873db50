"""What the agent adds to Celery's consumer: its objects follow each connection to Redis."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any

from celery import bootsteps

from dsf.agent import runtime
from dsf.agent.ending import is_ending
from dsf.agent.tracer import tracer
from dsf.messages import FETCH_TASK, PUBLISH_TASK, SCORE_TASK

#: Seconds between two looks for stages that hang and for scorers that were removed.
_LOOK_EVERY = 1.0
#: Seconds that an event for Flower waits for others.
_EVENTS_EVERY = 0.25
#: Events after which the thread that makes the next one sends them all: more than come together in that time.
_MOST_EVENTS = 1000


class AgentStep(bootsteps.StartStopStep):
    """Joins a new connection's consumer with what the agent keeps over all of its connections."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._look: Any = None

    def start(self, consumer: Any) -> None:
        """There is a new connection, and the worker takes ticks."""
        agent = runtime.current()
        pool, channel = consumer.pool, consumer.task_consumer.channel
        channel.room = pool.room
        channel.on_call = agent.handover.receive
        channel.on_refused = agent.metrics.refused_message
        pool.on_room = agent.handover.wake
        pool.is_more_to_come = agent.handover.deliver
        agent.handover.attach(consumer)
        # Celery's own logs each task that ended well.
        if not logging.getLogger().isEnabledFor(logging.DEBUG):
            for name in (FETCH_TASK, SCORE_TASK, PUBLISH_TASK):
                task = consumer.app.tasks[name]
                task.__trace__ = tracer(task)
        self._look = consumer.timer.call_repeatedly(
            _LOOK_EVERY, lambda: pool.replace(agent.cycles.look(agent.config.summaries()))
        )
        agent.readiness.consuming(True)
        dispatcher = consumer.event_dispatcher
        for connection in (consumer.connection, dispatcher and dispatcher.connection):
            _drop_unused(connection)

    def stop(self, consumer: Any) -> None:
        """The worker ends, or the connection is lost. What has begun is finished; nothing more begins."""
        runtime.current().readiness.consuming(False)
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if is_ending() and consumer.task_consumer is not None:
            consumer.task_consumer.channel.stop_taking()


def _drop_unused(connection: Any) -> None:
    """Every channel is made with a connection to Redis, to see whether it is there; what is not used now goes."""
    for channel in connection.transport.channels if connection else ():
        channel.async_pool.disconnect(inuse_connections=False)


class EventBatches(bootsteps.StartStopStep):
    """Sends events for Flower together, in a thread for each connection.

    Celery sends them one by one from its main loop, which waits for Redis meanwhile: over a line with 100 ms to the
    hub, six messages a cycle would leave time for less than two cycles a second.
    """

    requires = ("celery.worker.consumer.events:Events",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._end = threading.Event()
        #: The same for all connections: a task that began under an earlier one speaks to its dispatcher.
        self._is_some = threading.Event()

    def start(self, consumer: Any) -> None:
        """There is a new connection, and with it a new dispatcher."""
        dispatcher = consumer.event_dispatcher
        if dispatcher is not None:
            self._end = threading.Event()
            dispatcher.on_send_buffered = partial(_set, self._is_some)
            dispatcher.buffer_limit = _MOST_EVENTS
            threading.Thread(
                target=_send_batches, args=(dispatcher, self._is_some, self._end), name="dsf-events", daemon=True
            ).start()

    def stop(self, consumer: Any) -> None:
        """The connection ends, and what comes then goes with the next one."""
        del consumer
        self._end.set()
        self._is_some.set()

    def shutdown(self, consumer: Any) -> None:
        """The worker ends: the last ones are sent, those of the cycles that it finished before."""
        self._end.set()
        self._is_some.set()
        if consumer.event_dispatcher is not None:
            consumer.event_dispatcher.flush()


def _set(event: threading.Event) -> None:
    # To set it again would cost more than the event for Flower does.
    if not event.is_set():
        event.set()


def _send_batches(dispatcher: Any, is_some: threading.Event, end: threading.Event) -> None:
    # A dispatcher that cannot send keeps its events.
    while is_some.wait() and not end.wait(_EVENTS_EVERY):
        is_some.clear()
        dispatcher.flush()
