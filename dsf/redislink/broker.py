"""Celery's connections to the broker: waits between attempts, their name in logs, and events that do not wait
for them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote

import kombu
import redis
from celery.app import amqp, events
from celery.events.dispatcher import EventDispatcher
from kombu import serialization
from kombu.utils.imports import symbol_by_name
from kombu.utils.json import dumps

import dsf.log
from dsf.redislink.connection import is_socket

log = dsf.log.get(__name__)

#: Kombu's name for content that is JSON already.
_WRITTEN: Final = "written-json"
serialization.register(_WRITTEN, str, None, "application/json", "utf-8")

#: Names in `broker_transport_options`.
CREDENTIALS: Final = "credential_provider"
ADDRESS: Final = "address"
TRANSPORTS: Final = "transports"
#: The longest wait before another attempt to connect, in seconds: a rotated password or a restarted Redis is noticed at
#: most this late. It spreads the reconnects of 3,500 agents over seconds.
LONGEST_WAIT: Final = 5.0
#: Bytes per message of events. Flower drops larger ones: every holder of a cluster's credential can publish.
MOST_EVENT_BYTES: Final = 64 * 1024


class Connection(kombu.Connection):
    """A connection that reconnects soon: Redis restarts, and passwords are rotated.

    Kombu's own waits grow to half a minute, equal for all. Here they end at `LONGEST_WAIT`, and have jitter, so that a
    fleet does not reconnect at one moment when Redis is back. The credential provider and the module of the transports
    are in Celery's `broker_transport_options`: Celery passes on no others, and kombu forgets `broker_transport` when
    it goes on to the next Sentinel.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("credential_provider", (options.get("transport_options") or {}).get(CREDENTIALS))
        super().__init__(*args, **options)

    def ensure_connection(self, *args: Any, **options: Any) -> kombu.Connection:  # type: ignore[override]
        """Connect, retrying forever; `options` are those of kombu. Raises kombu's OperationalError."""
        return super().ensure_connection(*args, **(self._waits() | options))

    def get_transport_cls(self) -> Any:
        """The transport, of the module with this package's or this role's."""
        module = (self.transport_options or {}).get(TRANSPORTS)
        if module is None:
            return super().get_transport_cls()
        return symbol_by_name(f"{module}:{'SentinelTransport' if self.transport_cls == 'sentinel' else 'Transport'}")

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
        if ADDRESS not in (self.transport_options or {}):
            # Another library's connection in this process.
            return {}
        return {
            "interval_start": _drawn(),
            "interval_step": _drawn(),
            "interval_max": LONGEST_WAIT * _drawn(),
        }


class Amqp(amqp.AMQP):
    """Makes Celery use these connections."""

    Connection = Connection


# The overridden members are not in the published types.
_Producer: Any = kombu.Producer
_Dispatcher: Any = EventDispatcher


class EventProducer(_Producer):  # type: ignore[misc]
    """Sends events for Flower, or drops them: nothing waits for them.

    Celery retries heartbeats until Redis is back, in the worker's main loop, which meanwhile neither reconnects nor
    handles a shutdown. It also keeps unsent events without bound, and sends any number of them as one message.
    """

    _has_warned = False

    def publish(self, body: Any, *args: Any, **options: Any) -> None:
        """Send an event or a list of events, in messages that Flower accepts. What comes after an error is dropped."""
        options |= {"retry": False, "serializer": _WRITTEN}
        events = body if isinstance(body, list) else [body]
        try:
            for message in _messages(dumps(event) for event in events):
                super().publish(message, *args, **options)
        except Exception as error:  # noqa: BLE001 (events must not block or end anything)
            # Without a connection Celery says so.
            if not isinstance(error, redis.ConnectionError | redis.TimeoutError) and not self._has_warned:
                log.warning("events for Flower are refused and dropped", error=str(error))
                self._has_warned = True


class BoundedEventDispatcher(_Dispatcher):  # type: ignore[misc]
    """Celery's dispatcher of events with this producer."""

    def enable(self) -> None:
        """Start sending."""
        super().enable()
        self.producer = EventProducer(
            self.channel or self.connection, exchange=self.exchange, serializer=self.serializer, auto_declare=False
        )


class Events(events.Events):
    """Makes Celery use this dispatcher."""

    dispatcher_cls = f"{__name__}:{BoundedEventDispatcher.__name__}"


def _messages(events: Iterable[str]) -> Iterator[str]:
    """These events, in order, in JSON lists that each fit into a message."""
    part: list[str] = []
    size = 0
    for event in events:
        # They are quoted once more in the message, which must stay below MOST_EVENT_BYTES.
        if part and size + len(event) > 40_000:
            yield f"[{','.join(part)}]"
            part, size = [], 0
        part.append(event)
        size += len(event)
    if part:
        yield f"[{','.join(part)}]"


def _drawn() -> float:
    return random.uniform(0.5, 1.0)  # noqa: S311
