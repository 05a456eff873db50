"""The way from one stage of a cycle to the next: inside this worker, not through Redis.

A stage that has ended gives the message for the next one to this worker's own consumer, which treats it as one that it
took from its queue: the task is received, waits for a thread, and Flower shows it. So a cycle costs one pop and one
push however far away Redis is, and an agent needs no right to write to its queue. What is here when the process dies is
lost, as a whole cycle; the next tick comes.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import Any

from kombu.message import Message

from dsf.agent.ending import is_ending


class HandOver:
    """Messages for this worker from itself. `give` is for any thread, all else for the worker's main loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._order = itertools.count()
        #: When it is due (time.monotonic()), its number, the message.
        self._waiting: list[tuple[float, int, dict[str, Any]]] = []
        self._consumer: Any = None
        #: Until when the main loop's timer sleeps.
        self._alarm = float("inf")

    def give(self, message: dict[str, Any], delay: float = 0.0) -> None:
        """Have this message (`dsf.wire.message`) received in so many seconds; at once when the agent is to end."""
        with self._lock:
            heapq.heappush(self._waiting, (time.monotonic() + delay, next(self._order), message))
        self.wake()

    def wake(self) -> None:
        """Have the main loop look around: here, and whether one more tick may be taken."""
        consumer = self._consumer
        if consumer is not None:
            consumer.hub.call_soon(self.deliver)

    def attach(self, consumer: Any) -> None:
        """Hand to this consumer from now on."""
        self._consumer = consumer
        self._alarm = float("inf")
        self.wake()

    def deliver(self) -> bool:
        """Hand over what is due; says whether something still waits."""
        now = float("inf") if is_ending() else time.monotonic()
        if self._alarm <= now:
            self._alarm = float("inf")
        while True:
            with self._lock:
                if not self._waiting:
                    return False
                due = self._waiting[0][0]
                message = heapq.heappop(self._waiting)[-1] if due <= now else None
            if message is not None:
                _receive(self._consumer, message)
            else:
                if due < self._alarm:
                    self._alarm = due
                    self._consumer.timer.call_after(due - now, self.deliver)
                return True


def _receive(consumer: Any, message: dict[str, Any]) -> None:
    """As the consumer's own handler of messages that came from Redis; there is nothing to acknowledge."""
    received = Message(
        body=message["body"],
        content_type=message["content-type"],
        content_encoding=message["content-encoding"],
        headers=message["headers"],
        properties=message["properties"],
        delivery_info=message["properties"]["delivery_info"],
    )
    strategy = consumer.strategies[message["headers"]["task"]]
    strategy(received, None, _nothing, _nothing, consumer.on_task_message)


def _nothing(*_: Any) -> None:
    pass
