"""Celery's connections to the broker: waits between attempts, their name in logs, and events that do not wait
for them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote

import kombu
import redis
from celery.app import amqp, events
from celery.events.dispatcher import EventDispatcher
from kombu import serialization
from kombu.utils.json import JSONEncoder

import dsf.log
from dsf.redislink.connection import is_socket

log = dsf.log.get(__name__)

#: Kombu's JSON encoder, and its name for encoded content.
_encode = JSONEncoder().encode
_WRITTEN: Final = "written-json"
serialization.register(_WRITTEN, str, None, "application/json", "utf-8")

#: Names in `broker_transport_options`.
CREDENTIALS: Final = "credential_provider"
LONGEST_WAIT: Final = "reconnect_max_wait"
ADDRESS: Final = "address"
#: The first wait and the increment after each further attempt, in seconds; upper bounds of the random waits.
_FIRST = 1.0
_STEP = 1.0
#: Bytes per message of events. Flower drops larger ones: every holder of a cluster's credential can publish.
MOST_EVENT_BYTES: Final = 64 * 1024
#: Bytes of the events in it, before base64 adds a third.
_MOST_BODY_BYTES: Final = 40_000
#: Messages of events kept while they cannot be sent: some 20 MB at worst. The oldest are dropped first.
MOST_KEPT: Final = 100


class Connection(kombu.Connection):
    """A connection that reconnects soon: Redis restarts, and passwords are rotated.

    Kombu's own waits grow to half a minute, equal for all. Here they end at `DSF_REDIS_RECONNECT_MAX_WAIT`, and
    have jitter, so that a fleet does not reconnect at one moment when Redis is back. Both that and the credential
    provider are in Celery's `broker_transport_options`: Celery passes on no others.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("credential_provider", (options.get("transport_options") or {}).get(CREDENTIALS))
        super().__init__(*args, **options)

    def ensure_connection(self, *args: Any, **options: Any) -> kombu.Connection:  # type: ignore[override]
        """Connect, retrying forever; `options` are those of kombu. Raises kombu's OperationalError."""
        return super().ensure_connection(*args, **(self._waits() | options))

    def as_uri(self, include_password: bool = False, *args: Any, **options: Any) -> str:
        """Address of Redis, for logs; that of all Sentinels. With the password it is for Flower's page of queues."""
        address = (self.transport_options or {}).get(ADDRESS)
        if include_password and is_socket(self.hostname or ""):
            # Flower reads it as the user `default`, and database 0.
            return f"redis+socket://:{quote(self.password or '', safe='')}@{self.hostname}"
        if address is None or include_password:
            return super().as_uri(include_password, *args, **options)
        return str(address)

    def _waits(self) -> dict[str, float]:
        longest = (self.transport_options or {}).get(LONGEST_WAIT)
        if longest is None:
            # Another library's connection in this process.
            return {}
        return {
            "interval_start": _FIRST * _drawn(),
            "interval_step": _STEP * _drawn(),
            "interval_max": longest * _drawn(),
        }


class Amqp(amqp.AMQP):
    """Makes Celery use these connections."""

    Connection = Connection


# Its members are not in the published types of Celery.
_Dispatcher: Any = EventDispatcher


class PromptDispatcher(_Dispatcher):  # type: ignore[misc]
    """Sends an event now or keeps it until there is a connection; batches fit into messages that Flower accepts.

    Celery retries heartbeats until Redis is back, in the worker's main loop, which meanwhile neither reconnects, nor
    logs that it waits, nor handles a shutdown. It also sends any batch as one message, keeps unsent events without
    bound, and tries each of them after the first one has already timed out at a silent Redis.
    """

    #: Batched events, by group.
    _group_buffer: dict[str, list[Any]]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Have errors raised: buffering is done here.
        self.buffer_while_offline = False
        #: Messages, in JSON, and their routing keys.
        self._outbound_buffer: deque[tuple[str, str]] = deque(maxlen=MOST_KEPT)
        self._has_told = False

    def flush(self, errors: bool = True, groups: bool = True) -> None:
        """Send kept and batched events, up to the first message that cannot be sent."""
        del errors
        with self.mutex:
            if self._closed:
                return
            for group, waiting in list(self._group_buffer.items()) if groups else ():
                # Other threads append meanwhile.
                batch = list(waiting)
                self._keep(batch, f"{group}.multi")
                del waiting[: len(batch)]
            self._send_kept(self.producer)

    def disable(self) -> None:
        """Close it for its successor: events of tasks from now on wait for that one."""
        super().disable()
        self.enabled = True

    def extend_buffer(self, other: Any) -> None:
        """Take over unsent events of another dispatcher, and those that task threads still send to it.

        Celery drops events between the end of one connection and the worker's first use of the next one.
        """
        super().extend_buffer(other)
        for group, waiting in self._group_buffer.items():
            other._group_buffer[group] += waiting
        self._group_buffer = other._group_buffer

    def _publish(self, event: Any, producer: Any, routing_key: str, *_: Any, **__: Any) -> None:
        # The mutex is held.
        if producer is not None:
            self._keep(event, routing_key)
            self._send_kept(producer)

    def _keep(self, event: Any, routing_key: str) -> None:
        texts = [text for one in (event if isinstance(event, list) else [event]) if (text := self._text(one))]
        messages = _together(texts) if isinstance(event, list) else texts
        self._outbound_buffer.extend((message, routing_key) for message in messages)

    def _text(self, event: Any) -> str:
        """The event in JSON; empty if not encodable."""
        try:
            return _encode(event)
        except (TypeError, ValueError) as error:
            self._tell(error)
            return ""

    def _tell(self, error: Exception) -> None:
        # A retry would fail in the same way.
        if not self._has_told:
            log.warning("events for Flower are refused and dropped", error=str(error))
        self._has_told = True

    def _send_kept(self, producer: Any) -> None:
        while self._outbound_buffer:
            message, routing_key = self._outbound_buffer[0]
            try:
                producer.publish(
                    message,
                    routing_key=routing_key,
                    exchange=self.exchange.name,
                    declare=[self.exchange],
                    serializer=_WRITTEN,
                    headers=self.headers,
                    delivery_mode=self.delivery_mode,
                )
            except Exception as error:  # noqa: BLE001 (events must not block anything)
                if not isinstance(error, redis.ResponseError):
                    return
                self._tell(error)
            self._outbound_buffer.popleft()


class Events(events.Events):
    """Makes Celery use this dispatcher."""

    dispatcher_cls = f"{__name__}:{PromptDispatcher.__name__}"


def _together(events: Iterable[str]) -> Iterator[str]:
    """These events, in order, in JSON lists that each fit into a message."""
    part: list[str] = []
    size = 0
    for event in events:
        if part and size + len(event) > _MOST_BODY_BYTES:
            yield f"[{','.join(part)}]"
            part, size = [], 0
        part.append(event)
        size += len(event)
    if part:
        yield f"[{','.join(part)}]"


def _drawn() -> float:
    return random.uniform(0.5, 1.0)  # noqa: S311
