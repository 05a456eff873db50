"""Hand-over from one stage of a cycle to the next: inside this worker, not through Redis.

After a successful stage the next one runs in the same thread; a stage to be retried, or held back by a rate limit,
returns through the main loop. Both go to this worker's own consumer, like messages from Redis: the task is received,
runs, and Flower shows it. So a cycle costs one pop and one push at any distance to Redis, and an agent needs no right
to write to its queue. If the process dies, the cycle is lost as a whole; the next tick comes.
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
    """This worker's calls to itself. `give` is for any thread, `follow` for pool threads, all else for the worker's
    main loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._order = itertools.count()
        #: Due time (time.monotonic()), sequence number, call.
        self._waiting: list[tuple[float, int, StageCall]] = []
        self._consumer: Any = None
        #: When the main loop's timer fires.
        self._alarm = float("inf")

    def follow(self, call: StageCall) -> None:
        """Run it in this thread after the current task."""
        consumer = self._consumer
        if consumer.task_buckets[call.task] is None:
            consumer.pool.follow(partial(_receive, consumer, call))
        else:
            # Rate-limited: the main loop handles it.
            self.give(call)

    def give(self, call: StageCall, delay: float = 0.0) -> None:
        """Have it received after `delay` seconds; at once during shutdown."""
        with self._lock:
            heapq.heappush(self._waiting, (time.monotonic() + delay, next(self._order), call))
        self.wake()

    def wake(self) -> None:
        """Have the main loop check for calls here, and for room for one more tick."""
        consumer = self._consumer
        if consumer is not None:
            consumer.hub.call_soon(self.deliver)

    def attach(self, consumer: Any) -> None:
        """Use this consumer from now on."""
        self._consumer = consumer
        self._alarm = float("inf")
        self.wake()

    def receive(self, call: StageCall) -> None:
        """Have the consumer receive it."""
        _receive(self._consumer, call)

    def deliver(self) -> bool:
        """Hand over what is due; returns whether anything still waits."""
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
    """Like the consumer's handler of Redis messages, but without a message; nothing to acknowledge."""
    consumer.strategies[call.task](call, None, _nothing, _nothing, consumer.on_task_message)


def _nothing(*_: Any) -> None:
    pass
