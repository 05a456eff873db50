"""Celery's connections to the broker: how long they wait between two tries, how they call themselves in logs, and what
does not wait for them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any, Final

import kombu
from celery.app import amqp, events
from celery.events.dispatcher import EventDispatcher
from kombu.utils import json

from dsf.redislink.link import Link

#: The first wait and what is added after each further try, in seconds; both are the longest of what is drawn.
_FIRST = 1.0
_STEP = 1.0
#: Bytes of one message of events. Flower takes no larger one: everybody with a cluster's credential can publish.
MOST_EVENT_BYTES: Final = 64 * 1024
#: Bytes of the events in it, which grow by a third on their way (base64), and as many events as surely fit.
_MOST_BODY_BYTES: Final = 40_000
_FEW_EVENTS: Final = 8


class Connection(kombu.Connection):
    """A connection that is never long behind: Redis restarts, and passwords are rotated.

    Kombu's own waits grow to half a minute, equal for all. Here they end at `DSF_REDIS_RECONNECT_MAX_WAIT`, and
    each time others are drawn, so that a fleet whose Redis comes back does not come back at one moment.
    """

    def ensure_connection(self, *args: Any, **options: Any) -> kombu.Connection:  # type: ignore[override]
        """Connect, however long it takes; `options` are those of kombu. Raises kombu's OperationalError."""
        return super().ensure_connection(*args, **(self._waits() | options))

    def as_uri(self, include_password: bool = False, *args: Any, **options: Any) -> str:
        """Where Redis is. For logs without user and password; kombu would name the class of the transport."""
        link = self._link
        if link is None or include_password:
            return super().as_uri(include_password, *args, **options)
        return str(link.address)

    def _waits(self) -> dict[str, float]:
        if self._link is None:
            return {}
        longest = self._link.reconnect_max_wait * _drawn()
        return {"interval_start": _FIRST * _drawn(), "interval_step": _STEP * _drawn(), "interval_max": longest}

    @property
    def _link(self) -> Link | None:
        # None for another library's connection in this process.
        found: Link | None = (self.transport_options or {}).get("link")
        return found


class Amqp(amqp.AMQP):
    """Makes Celery use these connections."""

    Connection = Connection


class PromptDispatcher(EventDispatcher):
    """Sends an event now or keeps it until there is a connection again; many as messages that Flower takes.

    Celery has heartbeats tried until Redis is back, by the worker's main loop, which meanwhile neither connects anew,
    nor says that it waits, nor ends when it is told to. And it sends as one message whatever has come together.
    """

    def _publish(self, event: Any, *args: Any, **options: Any) -> None:
        messages = _divided(event) if isinstance(event, list) and len(event) > _FEW_EVENTS else [event]
        for message in messages:
            super()._publish(message, *args, **(options | {"retry": False}))  # type: ignore[misc]


class Events(events.Events):
    """Makes Celery use this dispatcher."""

    dispatcher_cls = f"{__name__}:{PromptDispatcher.__name__}"


def _divided(events: Iterable[Any]) -> Iterator[list[Any]]:
    """These events, in their order, in lists of which each fits into a message."""
    part: list[Any] = []
    size = 0
    for event in events:
        own = len(json.dumps(event))
        if part and size + own > _MOST_BODY_BYTES:
            yield part
            part, size = [], 0
        part.append(event)
        size += own
    if part:
        yield part


def _drawn() -> float:
    return random.uniform(0.5, 1.0)  # noqa: S311
