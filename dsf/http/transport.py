"""Connections that know the deadline of the exchange they serve, one pool of them per thread."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from dsf.http import trust
from dsf.http.deadline import Exchange

#: Servers to which a thread keeps a connection open. Each thread has one exchange at a time, so one each is enough.
_POOLS = 32


class _Local(threading.local):
    """What belongs to one thread: requests does not promise that its objects may be shared."""

    adapter: _Adapter | None = None
    exchange: Exchange | None = None


_local = _Local()


#: `name:port` of a URL -> host and port to connect to instead.
_aliases: dict[str, tuple[str, int]] = {}


def set_aliases(aliases: Mapping[str, str]) -> None:
    """Connect to `address:port` where a URL says `name:port`, for the whole process, as with a pod's hostAliases.

    Host header and certificate check stay with the name. Raises ValueError for a value that is no `address:port`.
    """
    parsed: dict[str, tuple[str, int]] = {}
    for name, target in aliases.items():
        host, _, port = target.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{target!r} is not <address>:<port>")
        parsed[name.lower()] = (host, int(port))
    _aliases.clear()
    _aliases.update(parsed)


@contextlib.contextmanager
def _alias(connection: HTTPConnection) -> Iterator[None]:
    """Within it, the connection leads to the alias of its server, if that has one."""
    named = connection.host, connection.port
    connection.host, connection.port = _aliases.get(f"{named[0]}:{named[1]}", named)
    try:
        yield
    finally:
        connection.host, connection.port = named


def _attach(connection: HTTPConnection) -> None:
    """Give the connection's socket to this thread's exchange, connecting first if needed.

    urllib3 knows a timeout for connecting and one for reading; while a request is sent, the former would count, and a
    scorer that is busy for three seconds must not look like a broken one.
    """
    if connection.sock is None:
        connection.connect()
    sock: socket.socket | None = connection.sock
    if sock is not None and _local.exchange is not None:
        _local.exchange.attach(sock)
        # What urllib3 sets on the socket before it sends.
        connection.timeout = _local.exchange.remaining()


class _HTTPConnection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        with _alias(self):
            return super()._new_conn()

    def request(self, *args: Any, **kwargs: Any) -> None:
        _attach(self)
        super().request(*args, **kwargs)


class _HTTPSConnection(HTTPSConnection):
    def connect(self) -> None:
        self.ssl_context = trust.context()
        super().connect()

    def _new_conn(self) -> socket.socket:
        with _alias(self):
            return super()._new_conn()

    def request(self, *args: Any, **kwargs: Any) -> None:
        _attach(self)
        super().request(*args, **kwargs)


class _HTTPPool(HTTPConnectionPool):
    ConnectionCls = _HTTPConnection


class _HTTPSPool(HTTPSConnectionPool):
    ConnectionCls = _HTTPSConnection


class _Adapter(HTTPAdapter):
    def __init__(self) -> None:
        super().__init__(pool_connections=_POOLS, pool_maxsize=1, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _HTTPPool, "https": _HTTPSPool}


def begin(exchange: Exchange) -> HTTPAdapter:
    """This thread's adapter; the next request through it belongs to `exchange`."""
    if _local.adapter is None:
        _local.adapter = _Adapter()
    _local.exchange = exchange
    return _local.adapter


def close() -> None:
    """Close the connections that this thread keeps open."""
    if _local.adapter is not None:
        _local.adapter.close()
        _local.adapter = None
