"""How ticks leave the cluster's queue: one at a time, while a thread is free, and taken apart before Celery sees them.

At most once: what was popped is gone from Redis, and nothing is ever put back, so that an agent needs no right to write
to its queue. What cannot be read is counted and dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty
from typing import Any

from kombu.transport import virtual

import dsf.log
from dsf.agent import inbox
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

_throttle = Throttle()


class QoS(_BaseQoS):  # type: ignore[misc]
    """Knows what was taken and not begun, and asks for more only while there is room for it."""

    #: What was taken runs in this process whatever becomes of the connection.
    restore_at_shutdown = False

    def can_consume(self) -> bool:
        """Whether one more tick may be taken."""
        return bool(super().can_consume() and self.channel.has_room())

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Forget a message; the next tick takes its place."""
        del requeue
        super().reject(delivery_tag)


class Channel(_BaseChannel):  # type: ignore[misc]
    """A channel that lets nothing into the worker but calls of its stages."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Whether a thread is free, and who counts what is refused; set by the worker.
        self.has_room: Callable[[], bool] = lambda: True
        self.on_refused: Callable[[], None] = lambda: None
        super().__init__(*args, **kwargs)
        self.QoS = QoS

    def _brpop_read(self, **options: Any) -> Any:
        client = self.client
        try:
            try:
                popped = client.parse_response(client.connection, "BRPOP", **options)
            except self.connection_errors:
                # The next look connects again.
                client.connection.disconnect()
                raise
            if popped is None:
                raise Empty
            self._take(*popped)
            return True
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()

    def _take(self, key: bytes, item: bytes) -> None:
        queue = key.decode()
        try:
            message = inbox.accept(item, queue)
        except MessageRejectedError as error:
            self.on_refused()
            if (not_logged := _throttle.take(error.reason)) is not None:
                log.warning("message refused", queue=queue, why=str(error), not_logged=not_logged)
            return
        self.connection._deliver(message, queue)

    def stop_taking(self) -> None:
        """Take no more ticks. One that is here already is handed to the worker.

        The base class waits for the answer to its pop, and what that brings would be lost.
        """
        connection: Any = self._in_poll
        if not connection:
            return
        try:
            if connection.can_read(0):
                self._brpop_read()
        except (Empty, *self.connection_errors) as error:
            log.debug("nothing taken any more", error=repr(error))
        connection.disconnect()
        self._in_poll = None

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
