"""Connections for requests, bound to the exchange they serve: its deadline, its limits, its trust and its addresses.

The process has one session: its pools are safe for threads, and a connection serves whichever thread comes next.

http.client and urllib3 have no limit for a whole answer: here every byte that arrives is counted, those of headers,
chunk lines and trailers included. Headers that contradict themselves are refused: they would make half a body a whole
one.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
import time
from email import errors
from http.cookiejar import DefaultCookiePolicy
from typing import Any, Final

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from dsf.http import addresses, trust
from dsf.http.access import PORTS, Proxy
from dsf.http.deadline import Exchange, current
from dsf.http.failures import NotHttpError, TooMuchError

#: Keepalive probes every 15 s keep a slow response's connection alive there; three without a response end it.
_SOCKET_OPTIONS: Final = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
#: Seconds since its last request after which a connection is not used again: load balancers and NAT forget an idle one
#: after 240 s and more, some without a word to either end.
IDLE_SECONDS: Final = 60.0
#: Bytes of status line and headers, those of interim answers (100 Continue) included.
_MAX_HEAD: Final = 256 * 1024
_DIGITS: Final = re.compile(r"[0-9]{1,18}")


class BoundedResponse(http.client.HTTPResponse):
    """The response of http.client, within the limits of this thread's exchange."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        exchange = current()
        exchange.answers.append(self)
        exchange.use(sock)
        self._wire = _Metered(self.fp.detach(), exchange)
        self.fp = io.BufferedReader(self._wire)

    def begin(self) -> None:
        """Read status and headers. Raises HTTPException."""
        super().begin()
        # Skips responses before the response, such as early hints; after 101 it is not HTTP any more.
        while self.status < http.client.OK and self.status != http.client.SWITCHING_PROTOCOLS:
            self.headers = None  # type: ignore[assignment]
            super().begin()
        if self._wire.is_over:
            # http.client takes the end of the connection for that of the headers.
            raise http.client.IncompleteRead(b"")
        _check(self.headers)
        if self.status < http.client.OK:
            self.will_close = True
        if self.status in (http.client.NO_CONTENT, http.client.NOT_MODIFIED):
            self.chunked = False
            del self.headers["Transfer-Encoding"]
        # The limit has room for chunk lines and trailers.
        self._wire.left += current().max_bytes * 2 + 1024 * 1024 - _MAX_HEAD


def _check(headers: http.client.HTTPMessage) -> None:
    # The email parser reports these defects because it does not see the body.
    benign = (errors.StartBoundaryNotFoundDefect, errors.MultipartInvariantViolationDefect)
    unread = "" if headers.is_multipart() else headers.get_payload()
    if unread or any(not isinstance(defect, benign) for defect in headers.defects):
        raise NotHttpError("a line of its headers cannot be read")
    if ", ".join(headers.get_all("Transfer-Encoding", [])).lower() not in ("", "identity", "chunked"):
        raise NotHttpError("its Transfer-Encoding is not the one that is understood, chunked")
    lengths = {length.strip() for line in headers.get_all("Content-Length", []) for length in line.split(",")}
    if len(lengths) > 1 or any(_DIGITS.fullmatch(length) is None for length in lengths):
        raise NotHttpError("its Content-Length is not one number")


class _Metered(io.RawIOBase):
    """The socket's bytes, counted. `left` is how many may follow, `is_over` whether the connection has ended."""

    def __init__(self, raw: io.RawIOBase, exchange: Exchange) -> None:
        self._raw = raw
        self._exchange = exchange
        self.left = _MAX_HEAD
        self.is_over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._raw.readinto(buffer)
        if not count:
            # An exchange at its deadline ends in the same way, and is an error.
            self._exchange.remaining()
            self.is_over = True
            return count
        self._exchange.is_answered = True
        self.left -= count
        if self.left < 0:
            raise TooMuchError
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TlsSocket(ssl.SSLSocket):
    """Its handshake has the exchange's time: a busy server may be slow, and urllib3 allows what connecting may take."""

    def do_handshake(self, block: bool = False) -> None:
        current().use(self)
        super().do_handshake(block)


class _Connection(HTTPConnection):
    """A connection to a checked address, kept for later requests while it can be expected to work."""

    response_class = BoundedResponse
    #: When its last request was sent, by time.monotonic().
    _used = 0.0

    @property
    def is_connected(self) -> bool:
        """True if the next request may use it; the pool closes it otherwise."""
        is_idle = time.monotonic() - self._used > IDLE_SECONDS
        return not current().is_new and not is_idle and super().is_connected

    def connect(self) -> None:
        """Connect to the first address of the server, its alias or its proxy that accepts it.

        The name is resolved and checked here and nowhere else: the library gets an address.
        """
        exchange = current()
        exchange.is_new = True
        host_and_port = self.host, self.port
        failure: Exception = OSError(f"{self.host} has no address")
        try:
            candidates = addresses.checked(*host_and_port, exchange)
            for index, (self.host, self.port) in enumerate(candidates):
                # Each has a share of the time, so that dead ones leave enough for one that answers.
                share = exchange.remaining() / (len(candidates) - index)
                self.timeout = min(addresses.CONNECT_TIMEOUT, share)
                try:
                    super().connect()
                except (NewConnectionError, ConnectTimeoutError) as error:
                    failure = error
                else:
                    exchange.use(self.sock)
                    return
        finally:
            self.host, self.port = host_and_port
        exchange.remaining()
        raise failure

    def request(self, *args: Any, **options: Any) -> None:
        """Send a request."""
        exchange = current()
        if self.sock is not None and not exchange.is_new:
            exchange.is_kept = True
            exchange.use(self.sock)
            # Milliseconds in which the peer must acknowledge what is sent to it. A new one may take its time.
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 5000)
        self._used = time.monotonic()
        super().request(*args, **options)


class _TlsConnection(_Connection, HTTPSConnection):
    def connect(self) -> None:
        """Connect, with the certificate's name that of the URL and not the address."""
        if self.server_hostname is None and not self.proxy_is_tunneling:
            self.server_hostname = self.host
        super().connect()
        # A DynamicScorer without verification has a condition that says so; urllib3 would warn at each request.
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

    def cert_verify(self, *_: Any) -> None:
        """The context has all CAs: requests would have each connection read the public ones again, 30 ms of CPU."""

    def build_connection_pool_key_attributes(
        self, request: requests.PreparedRequest, verify: Any, cert: Any = None
    ) -> Any:
        """Return the server, and the exchange's trust: connections made with one certificate or CA serve no other."""
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
            "server_hostname": tls.server_name or None,
        }


class _Session(requests.Session):
    """Sends what it is given: no redirects, no cookies, and no credentials or proxies of the environment."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self.headers = requests.structures.CaseInsensitiveDict(
            # JSON first, but any other type as well: health checks and plug-ins request documents that are none. Only
            # gzip: it is what Prometheus offers.
            {
                "User-Agent": "dynamic-scoring-framework",
                "Accept": "application/json, */*;q=0.1",
                "Accept-Encoding": "gzip",
            }
        )
        # Servers, and connections kept to each. Threads that need more make their own for a request.
        adapter = _PooledAdapter(pool_connections=100, pool_maxsize=64, max_retries=0)
        for scheme in PORTS:
            self.mount(f"{scheme}://", adapter)

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return None: even where redirects are not followed, requests reads the body of one into memory."""


session: Final = _Session()


def send(request: requests.PreparedRequest, proxy: Proxy | None) -> requests.Response:
    """Send a request of this thread's exchange; the body of the response is still to be read.

    Raises HttpError, and what requests, urllib3 and the operating system raise.
    """
    exchange = current()
    return session.send(
        request,
        stream=True,
        allow_redirects=False,
        timeout=exchange.remaining(),
        verify=exchange.tls.verify,
        proxies={} if proxy is None else dict.fromkeys(PORTS, proxy.url),
    )


def close() -> None:
    """Close all connections that are kept."""
    session.close()
