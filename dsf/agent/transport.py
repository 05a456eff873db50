"""Kombu's Redis transport for a worker that nothing in its queue may end.

Kombu reads a message's parts before Celery or a task can check them, and lets what fails there end the worker's main
loop (https://github.com/celery/celery/issues/7975): anybody who may push into a queue could stop its agent for good.
Here such a message is dropped. Only public names of kombu are overridden.
"""

from __future__ import annotations

import uuid
from queue import Empty
from typing import Any

from kombu.transport import virtual

from dsf.agent import ticks
from dsf.redislink import transport as link

# Kombu's published types lack the overridden members.
_Message: Any = virtual.Message
_Transport: Any = link.Transport
_SentinelTransport: Any = link.SentinelTransport
_Channel: Any = link.Channel
_SentinelChannel: Any = link.SentinelChannel

#: What a worker reconnects after.
_LOST: tuple[type[Exception], ...] = (Empty, *_Transport.connection_errors, *_Transport.channel_errors)


class Message(_Message):  # type: ignore[misc]
    """A call of a task. What Celery's consumer would fail on is an error here, before it counts as unacknowledged."""

    def __init__(self, payload: Any, *args: Any, **options: Any) -> None:
        parts = payload if isinstance(payload, dict) else {}
        headers, properties = parts.get("headers"), parts.get("properties")
        if not (isinstance(headers, dict) and isinstance(properties, dict) and isinstance(headers.get("task"), str)):
            raise ValueError("not a call of a task")
        # A message that cannot be acknowledged would take the place of a tick for ever.
        properties |= {"delivery_tag": str(uuid.uuid4()), "delivery_info": {}}
        # Kombu would decompress without a limit.
        headers.pop("compression", None)
        try:
            super().__init__(payload, *args, **options)
        except KeyError as error:
            # Kombu takes a KeyError for a lost connection.
            raise ValueError(f"a message without {error}") from None
        # Kombu keeps some errors for Celery, which logs them with the message.
        if self.errors or not isinstance(self.body, bytes | str):
            raise ValueError("not a call of a task")


class _Tolerant:
    """Mixin of a transport."""

    def on_readable(self, fileno: int) -> None:
        """Something came from Redis: what is no message is dropped."""
        try:
            super().on_readable(fileno)  # type: ignore[misc]
        except _LOST:
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, it is no message)
            ticks.refuse(error)


class TickChannel(_Channel):  # type: ignore[misc]
    """A channel with these messages."""

    Message = Message
    #: A tick that was taken is never put back: an agent has no right to write to its queue.
    do_restore = False


class Transport(_Tolerant, _Transport):  # type: ignore[misc]
    """Redis."""

    Channel = TickChannel


class TickSentinelChannel(_SentinelChannel):  # type: ignore[misc]
    """That channel to the server named by Sentinel."""

    Message = Message
    do_restore = False


class SentinelTransport(_Tolerant, _SentinelTransport):  # type: ignore[misc]
    """Redis behind Sentinel."""

    Channel = TickSentinelChannel
