"""Celery's connections to the broker: how long they wait between two tries, how they call themselves in logs, and what
does not wait for them."""

from __future__ import annotations

import random
from typing import Any

import kombu
from celery.app import amqp, events
from celery.events.dispatcher import EventDispatcher

from dsf.redislink.link import Link

#: The first wait and what is added after each further try, in seconds; both are the longest of what is drawn.
_FIRST = 1.0
_STEP = 1.0


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
    """Sends an event now or keeps it until there is a connection again.

    Celery has heartbeats tried until Redis is back, by the worker's main loop, which meanwhile neither connects anew,
    nor says that it waits, nor ends when it is told to.
    """

    def _publish(self, *args: Any, **options: Any) -> None:
        super()._publish(*args, **(options | {"retry": False}))  # type: ignore[misc]


class Events(events.Events):
    """Makes Celery use this dispatcher."""

    dispatcher_cls = f"{__name__}:{PromptDispatcher.__name__}"


def _drawn() -> float:
    return random.uniform(0.5, 1.0)  # noqa: S311
