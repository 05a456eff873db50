"""How ticks leave the cluster's queue: one at a time, while a thread is free, and taken apart before Celery sees them.

At most once: what was popped is gone from Redis, and nothing is ever put back, so that an agent needs no right to write
to its queue. What cannot be read is counted and dropped, and what can is given to the worker without kombu's way of a
message to its consumer.
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

# What is overridden is not in the published types of kombu.
_BaseChannel: Any = link.Channel
_BaseSentinelChannel: Any = link.SentinelChannel
_BaseTransport: Any = link.Transport
_BaseSentinelTransport: Any = link.SentinelTransport
_BaseQoS: Any = virtual.QoS

log = dsf.log.get(__name__)

#: Pops that wait in Redis at a time: ticks that come in one round trip.
_MOST_POPS = 8

_throttle = Throttle()


class QoS(_BaseQoS):  # type: ignore[misc]
    """Asks for more only while there is room for it. What was taken runs, whatever becomes of the connection."""

    def can_consume(self) -> bool:
        """Whether one more tick may be taken."""
        return bool(self.channel.room() > 0)


class Channel(_BaseChannel):  # type: ignore[misc]
    """A channel that lets nothing into the worker but calls of its stages."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: How many threads are free, who takes a call, and who counts what is refused; set by the worker.
        self.room: Callable[[], int] = lambda: 1
        self.on_call: Callable[[StageCall], object] = lambda _: None
        self.on_refused: Callable[[], None] = lambda: None
        # Pops that Redis has not answered; it takes the next one up as soon as it has answered the one before.
        self._asked = 0
        super().__init__(*args, **kwargs)
        self.QoS = QoS

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Ask for as many ticks as there are free threads, a few at most.

        Each pop is answered before Redis looks at the next one, so while nothing comes they cost as much as one. Over a
        long line, one after the other would be no more than one tick in each round trip.
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
            # What has come is taken at once: nothing tells the main loop of what is in the client's buffer already.
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
                # The next look connects again.
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
        """Take no more ticks. One that is here already is handed to the worker.

        The base class waits for the answer to its pop, and what that brings would be lost.
        """
        connection: Any = self._in_poll
        if not connection:
            return
        # Asks for no more.
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
    """That channel to the server that Sentinel names."""


class SentinelTransport(_BaseSentinelTransport):  # type: ignore[misc]
    """Redis behind Sentinel with that channel."""

    Channel = SentinelChannel
