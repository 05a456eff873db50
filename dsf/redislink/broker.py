"""Celery's connections to the broker: one CA, errors in one line, short waits between attempts, their name in logs.

All else is kombu's own. Credentials and TLS come from Celery's configuration (`dsf.celery`).
"""

from __future__ import annotations

import random
from typing import Any, Final
from urllib.parse import quote

import kombu
import redis
from celery.app import amqp
from kombu.transport import redis as redis_transport
from kombu.utils.imports import symbol_by_name

from dsf.redislink import connection

#: Names in `broker_transport_options`.
CREDENTIALS: Final = "credential_provider"
ADDRESS: Final = "address"
TRANSPORT: Final = "transport"
#: The longest wait before another attempt to connect, in seconds: a rotated password or a restarted Redis is noticed at
#: most this late. The wait spreads the reconnects of 3,500 agents over seconds.
LONGEST_WAIT: Final = 5.0

# Kombu's published types lack the overridden members.
_Channel: Any = redis_transport.Channel
_Transport: Any = redis_transport.Transport


class Channel(_Channel):  # type: ignore[misc]
    """A channel whose connections are of this package: the options name their class, also behind Sentinel."""

    from_transport_options = (*_Channel.from_transport_options, "connection_class", "connection_class_ssl")


class Transport(_Transport):  # type: ignore[misc]
    """Redis. A subscription whose server answers no more is made anew."""

    Channel = Channel

    def heartbeat_check(self, connection: Any, rate: int = 2) -> None:
        """Check subscriptions, on which nothing may come for long. Raises redis.ConnectionError if one is dead.

        Celery calls it every second while it waits for events."""
        super().heartbeat_check(connection, rate)
        for channel in list(connection.channels):
            if channel.active_fanout_queues:
                subscription = channel.subclient
                if subscription.connection is not None:
                    subscription.check_health()
                check_subscription(subscription)


def check_subscription(subscription: Any) -> None:
    """Raise redis.ConnectionError if a `redis.client.PubSub` has two health checks without an answer."""
    if subscription.health_check_response_counter >= 2:
        raise redis.ConnectionError("the server does not answer on the connection of a subscription")


class Connection(kombu.Connection):
    """A connection that reconnects soon, with this package's credentials and transport.

    Kombu's own waits grow to half a minute, equal for all. Here they end at `LONGEST_WAIT`, and have jitter, so that a
    fleet does not reconnect at one moment when Redis is back. Credentials and transport are in Celery's
    `broker_transport_options`: Celery passes on no others, and kombu forgets `broker_transport` when it goes on to the
    next Sentinel.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("credential_provider", (options.get("transport_options") or {}).get(CREDENTIALS))
        super().__init__(*args, **options)

    def ensure_connection(self, *args: Any, **options: Any) -> kombu.Connection:  # type: ignore[override]
        """Connect, with retries; `options` are those of kombu. Raises kombu's OperationalError."""
        waits = {"interval_start": _drawn(), "interval_step": _drawn(), "interval_max": LONGEST_WAIT * _drawn()}
        return super().ensure_connection(*args, **waits | options)

    def get_transport_cls(self) -> Any:
        """The transport: this package's, or this role's."""
        kind = (self.transport_options or {}).get(TRANSPORT)
        return super().get_transport_cls() if kind is None else symbol_by_name(kind)

    def as_uri(self, include_password: bool = False, *args: Any, **options: Any) -> str:
        """Address of Redis, for logs; that of all Sentinels. With the password it is for Flower's page of queues."""
        address = (self.transport_options or {}).get(ADDRESS)
        if include_password and connection.is_socket(self.hostname or ""):
            # Flower reads it as the user `default`, and database 0.
            return f"redis+socket://:{quote(self.password or '', safe='')}@{self.hostname}"
        if address is None or include_password:
            return super().as_uri(include_password, *args, **options)
        return str(address)


class Amqp(amqp.AMQP):
    """Makes Celery use these connections."""

    Connection = Connection


def _drawn() -> float:
    return random.uniform(0.5, 1.0)  # noqa: S311
