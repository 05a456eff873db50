"""Kombu's Redis transports with this package's connections: one CA, and errors in one line with a remedy.

All else is kombu's own. It takes credentials, TLS and Sentinels from Celery's configuration (`dsf.celery`).
"""

from __future__ import annotations

from typing import Any

from kombu.transport import redis

from dsf.redislink import connection

# Kombu's published types lack the overridden members.
_Channel: Any = redis.Channel
_SentinelChannel: Any = redis.SentinelChannel
_Transport: Any = redis.Transport
_SentinelTransport: Any = redis.SentinelTransport


class Channel(_Channel):  # type: ignore[misc]
    """A channel to one server."""

    tcp_class: type[Any] = connection.PlainConnection
    socket_class: type[Any] = connection.SocketConnection
    connection_class_ssl: type[Any] = connection.TlsConnection

    @property
    def connection_class(self) -> type[Any]:
        """The class of connections without TLS."""
        return self.socket_class if connection.is_socket(self.connection.client.hostname or "") else self.tcp_class


class SentinelChannel(_SentinelChannel):  # type: ignore[misc]
    """A channel to the server that Sentinel names."""

    connection_class = connection.MasterConnection
    connection_class_ssl = connection.MasterTlsConnection


class Transport(_Transport):  # type: ignore[misc]
    """Redis."""

    Channel = Channel


class SentinelTransport(_SentinelTransport):  # type: ignore[misc]
    """Redis behind Sentinel."""

    Channel = SentinelChannel
