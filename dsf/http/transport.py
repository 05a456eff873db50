"""Connections bound to the exchange they serve: its deadline, its limits, and its allowed addresses.

One pool per thread.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, Final, cast
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from dsf.http import addresses, proxies, trust
from dsf.http.access import Tls
from dsf.http.answer import Answer
from dsf.http.deadline import Exchange
from dsf.http.response import Response

#: Servers to which a thread keeps a connection open. Each thread has one exchange at a time, so one each is enough.
_POOLS = 32
#: Separate TLS configurations for which a thread keeps connections, and seconds until idle ones are closed.
_OWN_POOLS = 32
_OWN_SECONDS = 600.0
#: Seconds after which an unused connection is not used again: load balancers and NAT forget one after 240 s and more,
#: some without a word to either end.
IDLE_SECONDS: Final = 60.0
#: Seconds between keepalive probes, which keep a slow answer's connection alive there; three without an answer end it.
_PROBE_SECONDS: Final = 15
#: Seconds in which a kept connection's peer must acknowledge what is sent to it. A new one may take its time.
_ACKNOWLEDGED_SECONDS: Final = 5
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class _Local(threading.local):
    """State of one thread: requests does not guarantee that its objects are thread-safe."""

    adapter: Adapter | None = None
    exchange: Exchange | None = None
    tls: Tls | None = None

    def __init__(self) -> None:
        #: TLS configuration -> its connections and their last use, in this order.
        self.own: dict[Tls, tuple[Adapter, float]] = {}


_local = _Local()

_split = lru_cache(maxsize=1024)(urlsplit)

#: `name:port` of a URL -> host and port to connect to instead.
_aliases: dict[str, tuple[str, int]] = {}


def set_aliases(aliases: Mapping[str, str]) -> None:
    """Connect to `address:port` where a URL says `name:port`, for the whole process, as with a pod's hostAliases.

    Host header and certificate check use the name. Raises ValueError for a value that is not `address:port`.
    """
    parsed: dict[str, tuple[str, int]] = {}
    for name, target in aliases.items():
        host, _, port = target.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{target!r} is not <address>:<port>")
        parsed[name.lower()] = (host, int(port))
    _aliases.clear()
    _aliases.update(parsed)


def proxy_for(url: str, *, has_token: bool, own: str | None = None) -> proxies.Proxy | None:
    """The proxy for a request to this URL, None for a direct one; `own` is a configured one. Raises HttpError."""
    if own is not None:
        return proxies.named(own)
    parts = _split(url)
    if _aliases and f"{parts.hostname}:{parts.port or proxies.PORTS[parts.scheme]}" in _aliases:
        return None
    return proxies.proxy_for(parts, has_token=has_token)


def _connected(connection: HTTPConnection) -> socket.socket:
    """A socket to the connection's server, its alias or its proxy."""
    named = connection.host, connection.port
    connection.host, connection.port = _aliases.get(f"{named[0]}:{named[1]}", named)
    exchange = _exchange()
    try:
        made = addresses.connect(connection, exchange)
    finally:
        connection.host, connection.port = named
    for option in _KEEPALIVE:
        made.setsockopt(*option)
    # A busy server may be slow to handshake, and a proxy to reach the server.
    made.settimeout(exchange.remaining())
    if connection.proxy is not None:
        # A proxy's answer to CONNECT is bounded, too.
        connection.response_class = partial(Answer, exchange=exchange)  # type: ignore[assignment]
    try:
        exchange.attach(made)
    except TimeoutError:
        made.close()
        raise
    return made


def _attach(connection: _Kept) -> None:
    """Give the connection's socket to this thread's exchange, connecting first if needed.

    urllib3 has a connect timeout and a read timeout; the former would apply while a request is sent, and a
    scorer that is busy for three seconds must not look like a broken one.
    """
    exchange = _exchange()
    if connection.sock is None:
        connection.connect()
    exchange.attach(connection.sock)
    exchange.is_reused = connection.used > 0.0
    connection.used = time.monotonic()
    if exchange.is_reused:
        acknowledged = _ACKNOWLEDGED_SECONDS * 1000
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, acknowledged)
    # What urllib3 sets on the socket before it sends.
    connection.timeout = exchange.remaining()
    connection.response_class = partial(Answer, exchange=exchange)  # type: ignore[assignment]


def _response(connection: Any) -> Any:
    """What urllib3's connection does to get an answer, with a response of our own."""
    connection._response_options = None
    connection.sock.settimeout(connection.timeout)
    return Response(http.client.HTTPConnection.getresponse(connection))  # type: ignore[arg-type]


def _exchange() -> Exchange:
    if _local.exchange is None:
        raise RuntimeError("a request is sent outside of an exchange")
    return _local.exchange


class _TlsSocket(ssl.SSLSocket):
    """Serves its exchange from the handshake on: it replaces the connected socket."""

    def do_handshake(self, block: bool = False) -> None:
        _exchange().attach(self)
        super().do_handshake(block)


class _Kept(HTTPConnection):
    """A connection that is kept for later requests, while it can be expected to work."""

    #: Time of the last request, of time.monotonic(); 0 for a new connection.
    used = 0.0

    @property
    def is_connected(self) -> bool:
        """Whether the next request may use it; the pool closes it otherwise."""
        is_idle = time.monotonic() - self.used > IDLE_SECONDS
        return super().is_connected and not is_idle and not _exchange().is_repeated

    def close(self) -> None:
        super().close()
        self.used = 0.0


class _HTTPConnection(_Kept):
    def _new_conn(self) -> socket.socket:
        return _connected(self)

    def request(self, *args: Any, **kwargs: Any) -> None:
        _attach(self)
        super().request(*args, **kwargs)

    def getresponse(self) -> Any:
        return _response(self)


class _HTTPSConnection(_Kept, HTTPSConnection):
    def connect(self) -> None:
        tls = _local.tls
        self.ssl_context = trust.context(tls)
        self.ssl_context.sslsocket_class = _TlsSocket
        # The context has those.
        self.ca_certs = None
        if tls is not None:
            self.server_hostname = tls.server_name or None
            if not tls.verify:
                self.cert_reqs = ssl.CERT_NONE
                self.assert_hostname = False
        super().connect()
        # Reported as a condition of the DynamicScorer; urllib3 would warn at each request.
        self.is_verified = True

    def _new_conn(self) -> socket.socket:
        return _connected(self)

    def request(self, *args: Any, **kwargs: Any) -> None:
        _attach(self)
        super().request(*args, **kwargs)

    def getresponse(self) -> Any:
        return _response(self)


class _HTTPPool(HTTPConnectionPool):
    ConnectionCls = _HTTPConnection


class _HTTPSPool(HTTPSConnectionPool):
    ConnectionCls = _HTTPSConnection


_POOL_CLASSES = {"http": _HTTPPool, "https": _HTTPSPool}


class Adapter(HTTPAdapter):
    """Connections to several servers."""

    def __init__(self) -> None:
        super().__init__(pool_connections=_POOLS, pool_maxsize=1, max_retries=0)
        # `scheme://server` -> its connection. Its lookup in urllib3 takes as long as reading the headers.
        self._direct: dict[str, Any] = {}

    def ask(
        self, request: requests.PreparedRequest, timeout: tuple[float, float], hops: dict[str, str] | None
    ) -> Response:
        """Send a request, through the proxies `hops` by scheme. Raises what requests and urllib3 raise."""
        return cast("Response", self.send(request, stream=True, timeout=timeout, verify=True, proxies=hops))

    def close(self) -> None:
        """Close all connections; urllib3 closes those not in use."""
        self._direct.clear()
        super().close()

    def build_response(self, _: Any, resp: Any) -> Any:
        """Our own, as it came."""
        return resp

    def request_url(self, request: requests.PreparedRequest, proxies: Any) -> str:
        """The request target: path and query, or the whole URL for a proxy."""
        if proxies:
            return super().request_url(request, proxies)
        return "/" + str(request.url).split("/", 3)[3]

    def get_connection_with_tls_context(
        self, request: requests.PreparedRequest, verify: Any, proxies: Any = None, cert: Any = None
    ) -> Any:
        """The pool of the request's server or proxy."""
        if proxies:
            return super().get_connection_with_tls_context(request, verify, proxies, cert)
        server = "/".join(str(request.url).split("/", 3)[:3])
        found = self._direct.get(server)
        if found is None:
            if len(self._direct) >= _POOLS:
                self._direct.clear()
            found = self._direct[server] = super().get_connection_with_tls_context(request, verify, proxies, cert)
        return found

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOL_CLASSES

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = _POOL_CLASSES
        return manager


def begin(exchange: Exchange, tls: Tls | None = None) -> Adapter:
    """This thread's adapter for `tls`; the next request through it belongs to `exchange`."""
    _local.exchange, _local.tls = exchange, tls
    if tls is not None:
        return _own(tls)
    if _local.adapter is None:
        _local.adapter = Adapter()
    return _local.adapter


@contextlib.contextmanager
def begin_anew(exchange: Exchange, tls: Tls | None = None) -> Iterator[Adapter]:
    """An adapter without connections for one request, which belongs to `exchange`."""
    _local.exchange, _local.tls = exchange, tls
    adapter = Adapter()
    try:
        yield adapter
    finally:
        adapter.close()


def close() -> None:
    """Close the connections that this thread keeps open."""
    if _local.adapter is not None:
        _local.adapter.close()
        _local.adapter = None
    for adapter, _ in _local.own.values():
        adapter.close()
    _local.own.clear()


def _own(tls: Tls) -> Adapter:
    """Connections made with one certificate or CA are not used with another."""
    now = time.monotonic()
    found = _local.own.pop(tls, None)
    if found is None:
        # A replaced certificate is never used again.
        for old, (adapter, used) in list(_local.own.items()):
            if now - used > _OWN_SECONDS or len(_local.own) >= _OWN_POOLS:
                adapter.close()
                del _local.own[old]
    made = found[0] if found is not None else Adapter()
    _local.own[tls] = made, now
    return made
