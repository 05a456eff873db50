"""Sends the worker's events for Flower together and not one by one.

Celery sends them from its main loop, which waits for Redis meanwhile: over a line with 100 ms to the hub, six messages
a cycle would leave time for less than two cycles a second.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps

#: Seconds that an event waits at most; so much later does Flower see it.
_EVERY = 0.25


class EventBatches(bootsteps.StartStopStep):
    """Sends what has come together, regularly."""

    requires = ("celery.worker.consumer.events:Events",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._entry: Any = None

    def start(self, consumer: Any) -> None:
        """There is a new connection, and with it a new dispatcher."""
        dispatcher = consumer.event_dispatcher
        if dispatcher is not None:
            dispatcher.on_send_buffered = None
            self._entry = consumer.timer.call_repeatedly(_EVERY, dispatcher.flush)

    def stop(self, consumer: Any) -> None:
        """The connection ends; Celery sends what is left."""
        del consumer
        if self._entry is not None:
            self._entry.cancel()
            self._entry = None
