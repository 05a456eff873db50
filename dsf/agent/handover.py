"""The way from one stage of a cycle to the next: inside this worker, not through Redis.

A stage that has ended well has the next one follow in its own thread; one that is tried again later, or that waits for
its turn under a rate limit, comes back by way of the main loop. Either goes to this worker's own consumer, as what came
from Redis does: the task is received, runs, and Flower shows it. So a cycle costs one pop and one push however far away
Redis is, and an agent needs no right to write to its queue. What is here when the process dies is lost, as a whole
cycle; the next tick comes.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from functools import partial
from typing import Any

from dsf.agent.call import StageCall
from dsf.agent.ending import is_ending


class HandOver:
    """Calls for this worker from itself. `give` is for any thread, `follow` for one of the pool, all else for the
    worker's main loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._order = itertools.count()
        #: When it is due (time.monotonic()), its number, the call.
        self._waiting: list[tuple[float, int, StageCall]] = []
        self._consumer: Any = None
        #: Until when the main loop's timer sleeps.
        self._alarm = float("inf")

    def follow(self, call: StageCall) -> None:
        """Have it run in this thread, after the task that runs there now."""
        consumer = self._consumer
        if consumer.task_buckets[call.task] is None:
            consumer.pool.follow(partial(_receive, consumer, call))
        else:
            # It waits for its turn, and turns are the main loop's.
            self.give(call)

    def give(self, call: StageCall, delay: float = 0.0) -> None:
        """Have it received in so many seconds; at once when the agent is to end."""
        with self._lock:
            heapq.heappush(self._waiting, (time.monotonic() + delay, next(self._order), call))
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

    def receive(self, call: StageCall) -> None:
        """Have the consumer receive it."""
        _receive(self._consumer, call)

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
                call = heapq.heappop(self._waiting)[-1] if due <= now else None
            if call is not None:
                self.receive(call)
            else:
                if due < self._alarm:
                    self._alarm = due
                    self._consumer.timer.call_after(due - now, self.deliver)
                return True


def _receive(consumer: Any, call: StageCall) -> None:
    """As the consumer's own handler of messages from Redis, without one; there is nothing to acknowledge."""
    consumer.strategies[call.task](call, None, _nothing, _nothing, consumer.on_task_message)


def _nothing(*_: Any) -> None:
    pass
