"""Consumption of the cluster's queue: ticks are taken while a thread is free, and validated before Celery sees them.

At most once: a popped message is gone from Redis and never put back, so that an agent needs no right to write to its
queue. Unreadable messages are counted and dropped; the others go to the worker directly, bypassing kombu's delivery.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty
from typing import Any

from kombu.transport import virtual

import dsf.log
from dsf.agent import inbox
from dsf.agent.call import StageCall
from dsf.errors import MessageRejectedError
from dsf.redislink import transport as link
from dsf.throttle import Throttle

# The overridden members are missing in kombu's type stubs.
_BaseChannel: Any = link.Channel
_BaseSentinelChannel: Any = link.SentinelChannel
_BaseTransport: Any = link.Transport
_BaseSentinelTransport: Any = link.SentinelTransport
_BaseQoS: Any = virtual.QoS

log = dsf.log.get(__name__)

#: Pops pending in Redis at a time: ticks per round trip.
_MOST_POPS = 8

_throttle = Throttle()


class QoS(_BaseQoS):  # type: ignore[misc]
    """Prefetches only while there is room. Taken ticks run even if the connection is lost."""

    def can_consume(self) -> bool:
        """Whether one more tick may be taken."""
        return bool(self.channel.room() > 0)


class Channel(_BaseChannel):  # type: ignore[misc]
    """A channel that passes only stage calls to the worker."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Number of free threads, receiver of calls, counter of refused messages; set by the worker.
        self.room: Callable[[], int] = lambda: 1
        self.on_call: Callable[[StageCall], object] = lambda _: None
        self.on_refused: Callable[[], None] = lambda: None
        # Pops that Redis has not answered; it answers them one after another.
        self._asked = 0
        super().__init__(*args, **kwargs)
        self.QoS = QoS

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Ask for as many ticks as there are free threads, a few at most.

        Redis answers each pop before it looks at the next one, so while the queue is empty they cost as much as one.
        Without pipelining a slow link would allow only one tick per round trip.
        """
        connection = self.client.connection
        self._asked = 0 if connection is not self._in_poll else self._asked
        while self._asked < max(1, min(self.room(), _MOST_POPS)):
            super()._brpop_start(timeout)
            self._asked += 1

    def _brpop_read(self, **_: Any) -> Any:
        connection = self.client.connection
        was_taken = False
        try:
            # Drain at once: the main loop is not notified of data in the client's buffer.
            while True:
                popped = connection.read_response()
                self._asked -= 1
                if popped is not None:
                    was_taken = True
                    self._take(*popped)
                if self._asked <= 0 or not connection.can_read(0):
                    break
        except BaseException as error:
            self._asked, self._in_poll = 0, None
            if isinstance(error, self.connection_errors):
                # The next poll reconnects.
                connection.disconnect()
            raise
        self._brpop_sent_at = time.monotonic()
        if self._asked <= 0:
            self._in_poll = None
            self._flush_brpop_reauth()
        elif self.room() > 0:
            self._brpop_start()
        if not was_taken:
            raise Empty
        return True

    def _take(self, key: bytes, item: bytes) -> None:
        queue = key.decode()
        try:
            call = inbox.accept(item, queue)
        except MessageRejectedError as error:
            self.on_refused()
            if (not_logged := _throttle.take(error.reason)) is not None:
                log.warning("message refused", queue=queue, why=str(error), not_logged=not_logged)
            return
        self.on_call(call)

    def stop_taking(self) -> None:
        """Take no more ticks. One that has arrived is handed to the worker.

        The base class waits for the answer to its pop and would lose that message.
        """
        connection: Any = self._in_poll
        if not connection:
            return
        # No more requests.
        self.room = lambda: 0
        try:
            if connection.can_read(0):
                self._brpop_read()
        except (Empty, *self.connection_errors) as error:
            log.debug("nothing taken any more", error=repr(error))
        connection.disconnect()
        self._asked, self._in_poll = 0, None

    def close(self) -> None:
        """Close without waiting."""
        self.stop_taking()
        super().close()


class Transport(_BaseTransport):  # type: ignore[misc]
    """Redis with that channel."""

    Channel = Channel


class SentinelChannel(Channel, _BaseSentinelChannel):  # type: ignore[misc]
    """That channel to the server named by Sentinel."""


class SentinelTransport(_BaseSentinelTransport):  # type: ignore[misc]
    """Redis behind Sentinel with that channel."""

    Channel = SentinelChannel
