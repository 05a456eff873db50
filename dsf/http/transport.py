"""Connections for requests, bound to the exchange they serve: its deadline, its limits, its trust and its addresses.

One session for the process: its pools are safe for threads, and a connection serves whichever thread comes next.
"""

from __future__ import annotations

import socket
import ssl
import time
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Final

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from dsf.http import addresses, deadline, proxies, trust
from dsf.http.answer import BoundedResponse
from dsf.http.deadline import current

#: Keepalive probes every 15 s keep a slow answer's connection alive there; three without an answer end it.
_SOCKET_OPTIONS: Final = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


class _TlsSocket(ssl.SSLSocket):
    """Its handshake has the exchange's time: a busy server may be slow, and urllib3 allows what connecting may take."""

    def do_handshake(self, block: bool = False) -> None:
        current().use(self)
        super().do_handshake(block)


class _Connection(HTTPConnection):
    """A connection to a checked address, kept for later requests while it can be expected to work."""

    response_class = BoundedResponse
    used = 0.0

    @property
    def is_connected(self) -> bool:
        """Whether the next request may use it; the pool closes it otherwise."""
        exchange = current()
        exchange.connection = self
        is_idle = time.monotonic() - self.used > deadline.IDLE_SECONDS
        return not exchange.is_new and not is_idle and super().is_connected

    def connect(self) -> None:
        """Connect to the first address of the server, its alias or its proxy that accepts it.

        The name is resolved and checked here and nowhere else: the library gets an address.
        """
        exchange = current()
        exchange.connection, exchange.is_new = self, True
        deadline.connections.add(self)
        named = self.host, self.port
        failure: Exception = OSError(f"{self.host} has no address")
        try:
            for self.host, self.port in addresses.checked(*named, exchange):
                self.timeout = min(addresses.CONNECT_TIMEOUT, exchange.remaining())
                try:
                    super().connect()
                except (NewConnectionError, ConnectTimeoutError) as error:
                    failure = error
                else:
                    exchange.use(self.sock)
                    return
        finally:
            self.host, self.port = named
        exchange.remaining()
        raise failure

    def request(self, *args: Any, **options: Any) -> None:
        """Send a request."""
        exchange = current()
        if self.sock is not None and not exchange.is_new:
            exchange.use(self.sock)
            # Milliseconds in which the peer must acknowledge what is sent to it. A new one may take its time.
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 5000)
        super().request(*args, **options)

    def close(self) -> None:
        """Close it; a later request connects anew."""
        super().close()
        deadline.connections.discard(self)


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


class _PooledAdapter(HTTPAdapter):
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
        # Servers, and connections kept to each. Threads that need more make their own for a request.
        adapter = _PooledAdapter(pool_connections=100, pool_maxsize=64, max_retries=0)
        for scheme in addresses.PORTS:
            self.mount(f"{scheme}://", adapter)

    def get_redirect_target(self, resp: requests.Response) -> None:
        """None: even where redirects are not followed, requests reads the body of one into memory."""


session: Final = _Session()


def send(request: requests.PreparedRequest, proxy: proxies.Proxy | None) -> requests.Response:
    """Send a request of this thread's exchange; the body of the answer is still to be read.

    Raises HttpError, and what requests, urllib3 and the operating system raise.
    """
    exchange = current()
    return session.send(
        request,
        stream=True,
        allow_redirects=False,
        timeout=exchange.remaining(),
        verify=exchange.tls is None or exchange.tls.verify,
        proxies={} if proxy is None else dict.fromkeys(addresses.PORTS, proxy.url),
    )


def close() -> None:
    """Close all connections that are kept."""
    session.close()
