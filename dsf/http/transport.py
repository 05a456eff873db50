"""Connections for requests, bound to the exchange they serve: its deadline, its limits, its trust and its addresses.

The process has a single session. Its pools are thread-safe, so all threads share their connections.

http.client and urllib3 do not limit the size of a whole response. Therefore this module counts every byte that arrives,
including those of headers, chunk lines and trailers. It rejects contradictory headers, because they could make a
partial body look complete.
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
from dsf.http.deadline import Exchange, get_current_exchange
from dsf.http.failures import NotHttpError, TooMuchError

#: TCP options. A keepalive probe every 15 s prevents NAT and balancers from dropping the connection of a slow response.
#: Three probes without a reply end the connection.
_SOCKET_OPTIONS: Final = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
#: Maximum seconds since the last request after which a kept connection is used again. Load balancers and NAT drop idle
#: connections after 240 s or more, and some notify neither end.
IDLE_SECONDS: Final = 60.0
#: Maximum bytes of status lines and headers, including those of interim responses (100 Continue).
_MAX_HEAD_BYTES: Final = 256 * 1024
#: Additional bytes allowed for chunk lines and trailers. Chunk lines may also be as long as the body.
_FRAMING_BYTES: Final = 1024 * 1024
#: Milliseconds in which the peer must acknowledge a request on a kept connection, which may already be dead.
_KEPT_ACKNOWLEDGE_MILLISECONDS: Final = 5000
_DIGITS_PATTERN: Final = re.compile(r"[0-9]+")
#: Maximum digits of a Content-Length. Python refuses to read numbers of thousands of digits.
_MAX_LENGTH_DIGITS: Final = 18


class BoundedResponse(http.client.HTTPResponse):
    """A response of http.client that enforces the limits of this thread's exchange."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        exchange = get_current_exchange()
        exchange.responses.append(self)
        exchange.attach_socket(sock)
        self._reader = _MeteredReader(self.fp.detach(), exchange)
        self.fp = io.BufferedReader(self._reader)

    def begin(self) -> None:
        """Read status and headers. Raises HTTPException if they are invalid."""
        try:
            super().begin()
            # Skip interim responses, such as early hints. Stop at 101, because no HTTP follows after it.
            while self.status < http.client.OK and self.status != http.client.SWITCHING_PROTOCOLS:
                self.headers = None  # type: ignore[assignment]
                super().begin()
        except TooMuchError:
            raise NotHttpError(f"its headers, with interim responses, have more than {_MAX_HEAD_BYTES} bytes") from None
        if self._reader.has_ended:
            # http.client treats the end of the connection as the end of the headers.
            raise http.client.IncompleteRead(b"")
        _check_headers(self.headers)
        if self.status < http.client.OK:
            self.will_close = True
        if self.status in (http.client.NO_CONTENT, http.client.NOT_MODIFIED):
            self.chunked = False
            del self.headers["Transfer-Encoding"]
        # Replace the limit of the headers by that of the body with its framing.
        self._reader.remaining_bytes += get_current_exchange().max_bytes * 2 + _FRAMING_BYTES - _MAX_HEAD_BYTES


def _check_headers(headers: http.client.HTTPMessage) -> None:
    """Raise NotHttpError if headers are malformed or contradictory, and TooMuchError for a length beyond all limits."""
    # The email parser reports these defects because it does not see the body.
    harmless_defects = (errors.StartBoundaryNotFoundDefect, errors.MultipartInvariantViolationDefect)
    unparsed_text = "" if headers.is_multipart() else headers.get_payload()
    if unparsed_text or any(not isinstance(defect, harmless_defects) for defect in headers.defects):
        raise NotHttpError("a line of its headers cannot be read")
    if ", ".join(headers.get_all("Transfer-Encoding", [])).lower() not in ("", "identity", "chunked"):
        raise NotHttpError("its Transfer-Encoding is not the one that is understood, chunked")
    lengths = {length.strip() for line in headers.get_all("Content-Length", []) for length in line.split(",")}
    if len(lengths) > 1 or any(_DIGITS_PATTERN.fullmatch(length) is None for length in lengths):
        raise NotHttpError("its Content-Length is not one number")
    if any(len(length) > _MAX_LENGTH_DIGITS for length in lengths):
        raise TooMuchError


class _MeteredReader(io.RawIOBase):
    """Counts the bytes that are read from a socket. Raises TooMuchError above the limit."""

    def __init__(self, raw: io.RawIOBase, exchange: Exchange) -> None:
        self._raw = raw
        self._exchange = exchange
        #: Bytes that may still arrive.
        self.remaining_bytes = _MAX_HEAD_BYTES
        #: True if the peer has closed the connection.
        self.has_ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._raw.readinto(buffer)
        if not count:
            # Raises if the deadline has passed, because the end of the exchange also appears as EOF.
            self._exchange.require_remaining_seconds()
            self.has_ended = True
            return count
        self._exchange.has_response = True
        self.remaining_bytes -= count
        if self.remaining_bytes < 0:
            raise TooMuchError
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TlsSocket(ssl.SSLSocket):
    """TLS socket whose handshake may last until the exchange's deadline.

    urllib3 would apply the connect timeout to the handshake, which is too short for busy servers.
    """

    def do_handshake(self, block: bool = False) -> None:
        get_current_exchange().attach_socket(self)
        super().do_handshake(block)


class _Connection(HTTPConnection):
    """Connection to an allowed address, which is kept for later requests until it has been idle for too long."""

    response_class = BoundedResponse
    #: Time of the last request, on the clock of time.monotonic().
    _last_request_at = 0.0

    @property
    def is_connected(self) -> bool:
        """True if the current exchange may use the connection; otherwise the pool closes the connection."""
        is_idle = time.monotonic() - self._last_request_at > IDLE_SECONDS
        return not get_current_exchange().needs_new_connection and not is_idle and super().is_connected

    def connect(self) -> None:
        """Connect to the first reachable address of the server, of its alias or of its proxy.

        Resolves the name and checks its addresses before the library connects, so that the library gets an address and
        never resolves the name again. Raises the error of the last address if none is reachable.
        """
        exchange = get_current_exchange()
        exchange.needs_new_connection = True
        host_and_port = self.host, self.port
        last_error: Exception = OSError(f"{self.host} has no address")
        try:
            candidates = addresses.resolve_allowed(*host_and_port, exchange)
            for index, (self.host, self.port) in enumerate(candidates):
                # Divide the remaining time among the addresses, so that a dead address does not use all of it.
                time_share = exchange.require_remaining_seconds() / (len(candidates) - index)
                self.timeout = min(addresses.CONNECT_TIMEOUT, time_share)
                try:
                    super().connect()
                except (NewConnectionError, ConnectTimeoutError) as error:
                    last_error = error
                else:
                    exchange.attach_socket(self.sock)
                    return
        finally:
            self.host, self.port = host_and_port
        exchange.require_remaining_seconds()
        raise last_error

    def request(self, *args: Any, **options: Any) -> None:
        """Send a request. A kept connection fails early if the peer does not acknowledge the request."""
        exchange = get_current_exchange()
        if self.sock is not None and not exchange.needs_new_connection:
            exchange.reuses_connection = True
            exchange.attach_socket(self.sock)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _KEPT_ACKNOWLEDGE_MILLISECONDS)
        self._last_request_at = time.monotonic()
        super().request(*args, **options)


class _TlsConnection(_Connection, HTTPSConnection):
    def connect(self) -> None:
        """Connect, and verify the certificate against the name in the URL instead of the address."""
        if self.server_hostname is None and not self.proxy_is_tunneling:
            self.server_hostname = self.host
        super().connect()
        # Suppress urllib3's warning at each unverified request, because the DynamicScorer already has a condition that
        # reports the missing verification.
        self.is_verified = True


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


_POOL_CLASSES = {"http": _Pool, "https": _TlsPool}


class _PooledAdapter(HTTPAdapter):
    """Maintains a pool of connections for each combination of server and TLS options."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, socket_options=_SOCKET_OPTIONS, **options)
        self.poolmanager.pool_classes_by_scheme = _POOL_CLASSES

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        manager = super().proxy_manager_for(proxy, socket_options=_SOCKET_OPTIONS, **options)
        manager.pool_classes_by_scheme = _POOL_CLASSES
        return manager

    def cert_verify(self, *_: Any) -> None:
        """Do nothing, because the TLS context already contains all CAs.

        The method of requests would make each connection read the public CAs again, which takes 30 ms of CPU time.
        """

    def build_connection_pool_key_attributes(
        self, request: requests.PreparedRequest, verify: Any, cert: Any = None
    ) -> Any:
        """Return the pool's key: the server, and the TLS options of the current exchange.

        The TLS options are part of the key, so that no request uses a connection with another certificate or CA.
        """
        server, _ = super().build_connection_pool_key_attributes(request, True, cert)
        if server["scheme"] != "https":
            return server, {}
        tls = get_current_exchange().tls
        context = trust.get_ssl_context(tls)
        context.sslsocket_class = _TlsSocket
        return server, {
            "ssl_context": context,
            "cert_reqs": "CERT_REQUIRED" if verify else "CERT_NONE",
            "assert_hostname": None if verify else False,
            "server_hostname": tls.server_name or None,
        }


class _Session(requests.Session):
    """Sends requests without redirects, cookies, and credentials or proxies of the environment."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        self.headers = requests.structures.CaseInsensitiveDict(
            # Accept prefers JSON but allows any type, because health checks and plug-ins request other documents.
            # Accept-Encoding requests gzip only, because it is what Prometheus offers.
            {
                "User-Agent": "dynamic-scoring-framework",
                "Accept": "application/json, */*;q=0.1",
                "Accept-Encoding": "gzip",
            }
        )
        # The limits are servers, and kept connections per server. Additional threads open a connection for one request.
        adapter = _PooledAdapter(pool_connections=100, pool_maxsize=64, max_retries=0)
        for scheme in PORTS:
            self.mount(f"{scheme}://", adapter)

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return None, because requests otherwise reads a redirect's body into memory even if it does not follow it."""


session: Final = _Session()


def send(request: requests.PreparedRequest, proxy: Proxy | None) -> requests.Response:
    """Send a request of the current exchange, and return the response without reading its body.

    Raises HttpError, and the errors of requests, urllib3 and the operating system.
    """
    exchange = get_current_exchange()
    return session.send(
        request,
        stream=True,
        allow_redirects=False,
        timeout=exchange.require_remaining_seconds(),
        verify=exchange.tls.verify,
        proxies={} if proxy is None else dict.fromkeys(PORTS, proxy.url),
    )


def close() -> None:
    """Close all kept connections."""
    session.close()
