"""Celery's connections to the broker: one CA, errors in one line, their name in logs.

All else is kombu's own. It takes credentials and TLS from Celery's configuration (`dsf.celery`).
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import kombu
from celery.app import amqp
from kombu.transport import redis as redis_transport
from kombu.utils.imports import symbol_by_name

from dsf.redislink import connection

#: Names in `broker_transport_options`.
CREDENTIALS: Final = "credential_provider"
ADDRESS: Final = "address"
TRANSPORT: Final = "transport"

# Kombu's published types lack the overridden members.
_Channel: Any = redis_transport.Channel
_Transport: Any = redis_transport.Transport


class Channel(_Channel):  # type: ignore[misc]
    """A channel whose connections are of this package: the options name their class, also behind Sentinel."""

    from_transport_options = (*_Channel.from_transport_options, "connection_class", "connection_class_ssl")


class Transport(_Transport):  # type: ignore[misc]
    """Redis."""

    Channel = Channel


class Connection(kombu.Connection):
    """A connection with this package's credentials and transport.

    Both are in Celery's `broker_transport_options`: Celery passes on no others, and kombu forgets `broker_transport`
    when it goes on to the next Sentinel.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("credential_provider", (options.get("transport_options") or {}).get(CREDENTIALS))
        super().__init__(*args, **options)

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
