"""Boot steps of Celery's consumer: attach the agent's objects to each connection to Redis."""

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
from dsf.threads import SupervisedThread

#: Seconds between checks for hanging stages and removed scorers.
_LOOK_EVERY = 1.0
#: Seconds for which events for Flower are batched.
_EVENTS_EVERY = 0.25
#: Events after which the producing thread sends them all: more than normally come in that time.
_MOST_EVENTS = 1000


class AgentStep(bootsteps.StartStopStep):
    """Attaches the agent's long-lived objects to a new connection's consumer."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._look: Any = None

    def start(self, consumer: Any) -> None:
        """New connection: the worker takes ticks."""
        agent = runtime.current()
        pool, channel = consumer.pool, consumer.task_consumer.channel
        channel.room = pool.room
        channel.on_call = agent.handover.receive
        channel.on_refused = agent.metrics.refused_message
        pool.on_room = agent.handover.wake
        pool.is_more_to_come = agent.handover.deliver
        agent.handover.attach(consumer)
        # Celery's own logs each successful task.
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
        """Shutdown or lost connection. Running cycles are finished; no new one begins."""
        runtime.current().readiness.consuming(False)
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if is_ending() and consumer.task_consumer is not None:
            consumer.task_consumer.channel.stop_taking()


def _drop_unused(connection: Any) -> None:
    """Close unused connections: every channel opens one to check that Redis is reachable."""
    for channel in connection.transport.channels if connection else ():
        channel.async_pool.disconnect(inuse_connections=False)


class EventBatches(bootsteps.StartStopStep):
    """Sends events for Flower in batches, in one thread per connection.

    Celery sends them one by one from its main loop, which blocks on Redis: at 100 ms to the hub, six messages per cycle
    would allow less than two cycles a second.
    """

    requires = ("celery.worker.consumer.events:Events",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._end = threading.Event()
        #: Shared by all connections: a task begun under an earlier one uses that one's dispatcher.
        self._is_some = threading.Event()

    def start(self, consumer: Any) -> None:
        """New connection, with a new dispatcher."""
        dispatcher = consumer.event_dispatcher
        if dispatcher is not None:
            self._end = threading.Event()
            dispatcher.on_send_buffered = partial(_set, self._is_some)
            dispatcher.buffer_limit = _MOST_EVENTS
            SupervisedThread(partial(_send_batches, dispatcher, self._is_some, self._end), "dsf-events").start()

    def stop(self, consumer: Any) -> None:
        """The connection ends; later events are sent over the next one."""
        del consumer
        self._end.set()
        self._is_some.set()

    def shutdown(self, consumer: Any) -> None:
        """Shutdown: send the last events, those of the cycles finished before."""
        self._end.set()
        self._is_some.set()
        if consumer.event_dispatcher is not None:
            consumer.event_dispatcher.flush()


def _set(event: threading.Event) -> None:
    # Setting it again would cost more than the event for Flower.
    if not event.is_set():
        event.set()


def _send_batches(dispatcher: Any, is_some: threading.Event, end: threading.Event) -> None:
    # A dispatcher keeps events that it cannot send.
    while is_some.wait() and not end.wait(_EVENTS_EVERY):
        is_some.clear()
        dispatcher.flush()
