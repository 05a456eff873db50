"""Kombu's Redis transports with the framework's connections: current credentials, one CA, clear errors.

`transport_options["link"]` is the `Link` of the process. Celery's configuration holds no password.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import redis
from kombu import transport as registry
from kombu.transport import redis as base
from redis.backoff import NoBackoff
from redis.retry import Retry

# Kombu's published types lack the overridden members.
_BaseChannel: Any = base.Channel
_BaseSentinelChannel: Any = base.SentinelChannel
_BaseTransport: Any = base.Transport
_BaseSentinelTransport: Any = base.SentinelTransport


class Linked:
    """Channel mixin: takes from the link what kombu would take from the URL."""

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        link = self.connection.client.transport_options.get("link")  # type: ignore[attr-defined]
        if link is None:
            # Another library's connection in this process.
            theirs: dict[str, Any] = super()._connparams(asynchronous)  # type: ignore[misc]
            return theirs
        # Kombu derives a class from this one.
        self.connection_class = link.connection_class
        self.connection_class_ssl = link.connection_class
        options: dict[str, Any] = super()._connparams(asynchronous)  # type: ignore[misc]
        options.pop("username", None)
        options.pop("password", None)
        options |= link.tls_options
        options["credential_provider"] = link.credentials
        return options


class Channel(Linked, _BaseChannel):  # type: ignore[misc]
    """A channel to one server."""

    #: Kombu's property takes a lock at each look, of which there are several for each message.
    client = cached_property(_BaseChannel.client.func)

    def __init__(self, *args: Any, **options: Any) -> None:
        # Before the base class connects: that may fail.
        self._shared: redis.Redis | None = None
        super().__init__(*args, **options)

    @contextmanager
    def conn_or_acquire(self, client: redis.Redis | None = None) -> Iterator[redis.Redis]:
        """A client on this channel's pool, `client` if there is one.

        The base class makes a new client for each message, several times. That costs a tenth of a results worker's CPU:
        every client has its own table of all commands. Threads may share a client.
        """
        if client is None:
            client = self._shared
            if client is None or client.connection_pool is not self.pool:
                client = self._shared = self._create_client()
        yield client

    def _subscribe(self) -> None:
        """Subscribe with a connection whose end is an error, after which the whole channel is recreated.

        redis-py would reconnect by itself, without subscribing again and on a socket that is not polled: Flower
        would receive no more events after Redis has disconnected it as too slow.
        """
        super()._subscribe()
        if (connection := self._in_listen) is not None:
            connection.retry = Retry(NoBackoff(), 0)


class SentinelChannel(Channel, _BaseSentinelChannel):  # type: ignore[misc]
    """A channel to the server that Sentinel names."""

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> Any:
        link = self.connection.client.transport_options.get("link")
        if link is None:
            return super()._sentinel_managed_pool(asynchronous)
        options = self._connparams(asynchronous)
        options.pop("host", None)
        options.pop("port", None)
        connection_class = options.pop("connection_class")
        manager = link.sentinel(options)
        # The base class closes this attribute.
        if asynchronous:
            self._async_sentinel_manager = manager
        else:
            self._sentinel_manager = manager
        return manager.master_for(self.master_name, connection_class=connection_class).connection_pool


class Transport(_BaseTransport):  # type: ignore[misc]
    """Redis."""

    Channel = Channel


class SentinelTransport(_BaseSentinelTransport):  # type: ignore[misc]
    """Redis behind Sentinel."""

    Channel = SentinelChannel


def install(module: str = __name__) -> None:
    """Make the transports of `module`, or these, those of redis://, rediss:// and sentinel:// URLs in this process."""
    registry.TRANSPORT_ALIASES.update(
        redis=f"{module}:{Transport.__name__}",
        rediss=f"{module}:{Transport.__name__}",
        sentinel=f"{module}:{SentinelTransport.__name__}",
    )
    # One of them may be cached already.
    vars(registry).get("_transport_cache", {}).clear()
