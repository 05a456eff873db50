"""Connections for requests, bound to the exchange they serve: its deadline, its limits, its trust and its addresses.

One session for the process: its pools are safe for threads, and a connection serves whichever thread comes next.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Mapping
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from dsf.http import addresses, proxies, trust
from dsf.http.answer import Answer
from dsf.http.deadline import current
from dsf.threads import SupervisedThread

#: Servers to which connections are kept, and connections to each. Threads that need more make their own for a request.
_SERVERS: Final = 100
_KEPT: Final = 64
#: Seconds after which an unused connection is not used again: load balancers and NAT forget one after 240 s and more,
#: some without a word to either end.
IDLE_SECONDS: Final = 60.0
#: Seconds between keepalive probes, which keep a slow answer's connection alive there; three without an answer end it.
_PROBE_SECONDS: Final = 15
_SOCKET_OPTIONS: Final = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
#: Milliseconds in which a kept connection's peer must acknowledge what is sent to it. A new one may take its time.
_ACKNOWLEDGED_MS: Final = 5000
#: Bytes that are sent at once: OpenSSL's timeout is for each of its records, which are this large.
_PIECE: Final = 16 * 1024

#: Guards which connections are open, and which of them have an exchange. Reentrant: closing one is a change.
_lock = threading.RLock()
_open: set[_Connection] = set()

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


def alias_of(url: str) -> str:
    """`address:port` where a request to this URL goes to instead of its host; empty if it goes there."""
    parts = urlsplit(url)
    host, port = _aliases.get(f"{parts.hostname}:{parts.port or proxies.PORTS.get(parts.scheme, 0)}", ("", 0))
    return f"{host}:{port}" if host else ""


def proxy_for(url: str, *, has_token: bool, own: str | None = None) -> proxies.Proxy | None:
    """The proxy for a request to this URL, None for a direct one; `own` is a configured one. Raises HttpError."""
    if own is not None:
        return proxies.named(own)
    parts = urlsplit(url)
    if _aliases and f"{parts.hostname}:{parts.port or proxies.PORTS[parts.scheme]}" in _aliases:
        return None
    return proxies.proxy_for(parts, has_token=has_token)


class _TlsSocket(ssl.SSLSocket):
    """Its handshake has the exchange's time: a busy server may be slow, and urllib3 allows what connecting may take."""

    def do_handshake(self, block: bool = False) -> None:
        exchange = current()
        exchange.attach(self)
        self.settimeout(exchange.remaining())
        super().do_handshake(block)


class _Connection(HTTPConnection):
    """A connection to a checked address, kept for later requests while it can be expected to work."""

    response_class = Answer
    #: Time of the last request or the end of its answer, of time.monotonic(); 0 for a new connection.
    used = 0.0
    is_busy = False

    @property
    def is_connected(self) -> bool:
        """Whether the next request may use it; the pool closes it otherwise."""
        with _lock:
            self.is_busy = super().is_connected and not self._is_idle() and not current().is_on_new
            return self.is_busy

    def rest(self) -> None:
        """Its exchange is over."""
        with _lock:
            self.is_busy = False
            self.used = time.monotonic()

    def close_if_idle(self) -> None:
        """Close it if no request will use it."""
        with _lock:
            if not self.is_busy and self._is_idle():
                self.close()

    def _is_idle(self) -> bool:
        return time.monotonic() - self.used > IDLE_SECONDS

    def connect(self) -> None:
        """Connect to the first address of the server, its alias or its proxy that accepts it.

        The name is resolved and checked here and nowhere else: the library gets an address.
        """
        exchange = current()
        with _lock:
            self.is_busy = True
            _open.add(self)
        exchange.connection = self
        _idle.start()
        named = self.host, self.port
        host, port = _aliases.get(f"{self.host}:{self.port}", named)
        failure: Exception = OSError(f"{host} has no address")
        try:
            for address in addresses.checked(host, port, exchange):
                self.host, self.port = address, port
                self.timeout = min(addresses.CONNECT_TIMEOUT, exchange.remaining())
                try:
                    super().connect()
                except (NewConnectionError, ConnectTimeoutError) as error:
                    failure = error
                else:
                    return
        finally:
            self.host, self.port = named
        exchange.remaining()
        raise failure

    def request(self, *args: Any, **options: Any) -> None:
        """Send a request."""
        exchange = current()
        exchange.connection = self
        exchange.is_reused = self.used > 0.0
        self.used = time.monotonic()
        if exchange.is_reused and self.sock is not None:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _ACKNOWLEDGED_MS)
        super().request(*args, **options)

    def send(self, data: Any) -> None:
        """Send a part of a request, in the time that is left."""
        if self.sock is None:
            self.connect()
        exchange = current()
        exchange.attach(self.sock)
        view = memoryview(data)
        for start in range(0, len(view), _PIECE):
            self.sock.settimeout(exchange.remaining())
            super().send(view[start : start + _PIECE])

    def close(self) -> None:
        """Close it; a later request connects anew."""
        super().close()
        self.used = 0.0
        _open.discard(self)


class _Idle:
    """A thread that closes idle connections, from the first connection on."""

    def __init__(self) -> None:
        self._thread: SupervisedThread | None = None

    def start(self) -> None:
        """Start it, if it does not run."""
        if self._thread is None:
            self._thread = SupervisedThread(self._run, "dsf-http-idle")
            self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(IDLE_SECONDS / 4)
            close_idle()


_idle = _Idle()


def close_idle() -> None:
    """Close connections that were idle for too long to be used again."""
    for connection in list(_open):
        connection.close_if_idle()


class _TlsConnection(_Connection, HTTPSConnection):
    def connect(self) -> None:
        """Connect, with the certificate's name that of the URL and not the address."""
        if self.server_hostname is None and not self.proxy_is_tunneling:
            self.server_hostname = self.host
        super().connect()
        # That it was not is a condition of the DynamicScorer; urllib3 would warn at each request.
        self.is_verified = True


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


_POOL_CLASSES = {"http": _Pool, "https": _TlsPool}


class _Adapter(HTTPAdapter):
    """Pools of such connections, one for each server and its trust."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, socket_options=_SOCKET_OPTIONS, **options)
        self.poolmanager.pool_classes_by_scheme = _POOL_CLASSES

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        manager = super().proxy_manager_for(proxy, socket_options=_SOCKET_OPTIONS, **options)
        manager.pool_classes_by_scheme = _POOL_CLASSES
        return manager

    def build_connection_pool_key_attributes(
        self, request: requests.PreparedRequest, verify: Any, cert: Any = None
    ) -> Any:
        """The server, and the exchange's trust: connections made with one certificate or CA serve no other."""
        server, _ = super().build_connection_pool_key_attributes(request, True, cert)
        if server["scheme"] != "https":
            return server, {}
        tls = current().tls
        context = trust.context(tls)
        context.sslsocket_class = _TlsSocket
        return server, {
            "ssl_context": context,
            "cert_reqs": "CERT_REQUIRED" if verify else "CERT_NONE",
            "assert_hostname": None if verify else False,
            "server_hostname": (tls.server_name if tls is not None else "") or None,
        }


class _Session(requests.Session):
    """Sends what it is given: no redirects, no cookies, and no credentials or proxies of the environment."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self.headers = requests.structures.CaseInsensitiveDict(
            # Only gzip: it is what Prometheus offers.
            {"User-Agent": "dynamic-scoring-framework", "Accept": "application/json", "Accept-Encoding": "gzip"}
        )
        adapter = _Adapter(pool_connections=_SERVERS, pool_maxsize=_KEPT, max_retries=0)
        for scheme in proxies.PORTS:
            self.mount(f"{scheme}://", adapter)

    def get_redirect_target(self, resp: requests.Response) -> None:
        """None: even where redirects are not followed, requests reads the body of one into memory."""


session: Final = _Session()


def send(request: requests.PreparedRequest, proxy: proxies.Proxy | None) -> requests.Response:
    """Send a request of this thread's exchange; the body of the answer is still to be read.

    Raises HttpError, and what requests, urllib3 and the operating system raise.
    """
    exchange = current()
    seconds = exchange.remaining()
    return session.send(
        request,
        stream=True,
        allow_redirects=False,
        timeout=(min(addresses.CONNECT_TIMEOUT, seconds), seconds),
        verify=exchange.tls is None or exchange.tls.verify,
        proxies={} if proxy is None else dict.fromkeys(proxies.PORTS, proxy.url),
    )


def close() -> None:
    """Close all connections that are kept."""
    session.close()
