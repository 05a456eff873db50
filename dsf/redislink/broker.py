"""Celery's connections to the broker, with the connection classes of `dsf.redislink.connection`.

Unlike kombu's own connections, they trust a single CA, report errors in one line, wait shorter between attempts, and
log the address without the password. Credentials and TLS options are in Celery's configuration (`dsf.celery`).
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import kombu
import redis
from celery.app import amqp
from kombu.transport import redis as redis_transport
from kombu.utils.imports import symbol_by_name

from dsf.redislink import connection

#: Names of options in `broker_transport_options`.
CREDENTIALS: Final = "credential_provider"
ADDRESS: Final = "address"
TRANSPORT: Final = "transport"
CLIENT: Final = "shared_client"
#: Maximum seconds between two attempts to connect: agents reconnect soon after a password was rotated or Redis was
#: restarted, and the reconnects of 3,500 agents are spread over some seconds.
MAX_RETRY_SECONDS: Final = 5.0

# Kombu's published types lack the overridden members.
_Channel: Any = redis_transport.Channel
_Transport: Any = redis_transport.Transport


class Channel(_Channel):  # type: ignore[misc]
    """A channel with this package's connection classes, also behind Sentinel. The transport options name the class.

    With `shared_client` in the options, a channel only opens connections for blocking commands, and uses the client for
    all other commands.
    """

    from_transport_options = (*_Channel.from_transport_options, "connection_class", "connection_class_ssl", CLIENT)
    shared_client: redis.Redis | None = None

    @contextlib.contextmanager
    def conn_or_acquire(self, client: redis.Redis | None = None) -> Iterator[redis.Redis]:
        """Yield a client for commands that do not block."""
        with super().conn_or_acquire(client or self.shared_client) as acquired_client:
            yield acquired_client


class Transport(_Transport):  # type: ignore[misc]
    """A transport that replaces a subscription whose server no longer responds."""

    Channel = Channel

    def heartbeat_check(self, connection: Any, rate: int = 2) -> None:
        """Check the subscriptions. Raises redis.ConnectionError if the server of a subscription does not respond.

        Only a health check detects a lost server, because a subscription may be silent for hours. Celery calls this
        method every second while it waits for events.
        """
        super().heartbeat_check(connection, rate)
        for channel in list(connection.channels):
            if channel.active_fanout_queues:
                subscription = channel.subclient
                if subscription.connection is not None:
                    subscription.check_health()
                check_subscription(subscription)


def check_subscription(subscription: Any) -> None:
    """Raise redis.ConnectionError if the server has not answered two health checks of a `redis.client.PubSub`."""
    if subscription.health_check_response_counter >= 2:
        raise redis.ConnectionError("the server does not answer on the connection of a subscription")


class Connection(kombu.Connection):
    """A connection with short waits between attempts, and with this package's credentials and transport.

    Kombu's own waits grow to 30 s and have no jitter. The waits of this class are at most `MAX_RETRY_SECONDS` and have
    jitter, so that agents do not all reconnect at the same time after an outage. Credentials and transport are in
    `broker_transport_options`: Celery passes no other options on, and kombu drops `broker_transport` when it fails over
    to the next Sentinel.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("credential_provider", (options.get("transport_options") or {}).get(CREDENTIALS))
        super().__init__(*args, **options)

    def ensure_connection(self, *args: Any, **options: Any) -> kombu.Connection:  # type: ignore[override]
        """Connect, with retries. `options` are kombu's. Raises kombu's OperationalError."""
        intervals = {
            "interval_start": _make_jitter(),
            "interval_step": _make_jitter(),
            "interval_max": MAX_RETRY_SECONDS * _make_jitter(),
        }
        return super().ensure_connection(*args, **intervals | options)

    def get_transport_cls(self) -> Any:
        """Return the transport class in the options, or kombu's class for the URL."""
        kind = (self.transport_options or {}).get(TRANSPORT)
        return super().get_transport_cls() if kind is None else symbol_by_name(kind)

    def as_uri(self, include_password: bool = False, *args: Any, **options: Any) -> str:
        """Return the address of Redis, with all Sentinels, for logs. Only Flower's queue page needs the password."""
        address = (self.transport_options or {}).get(ADDRESS)
        if include_password and connection.is_socket(self.hostname or ""):
            # Omit user and database, because Flower always connects as the user `default`, to database 0.
            return f"redis+socket://:{quote(self.password or '', safe='')}@{self.hostname}"
        if address is None or include_password:
            return super().as_uri(include_password, *args, **options)
        return str(address)


class Amqp(amqp.AMQP):
    """Celery's AMQP class with this module's connections."""

    Connection = Connection


def _make_jitter() -> float:
    """Return a random factor between 0.5 and 1."""
    return random.uniform(0.5, 1.0)  # noqa: S311
