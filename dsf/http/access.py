"""Access to one server: credentials, server verification, the secrets to mask, and the way there.

HTTP_PROXY, HTTPS_PROXY and NO_PROXY apply, in upper or lower case; OCM sets them in agents from `proxyConfig`. These
requests never use a proxy:

- addresses and names of this machine and of this cluster, which no proxy outside of it can reach;
- tokens over plain http, which the proxy could read. Over https a proxy sees only the name of the server.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

import requests

from dsf.errors import HttpError

#: `(name, value)`, in the order in which they are sent.
Pairs = tuple[tuple[str, str], ...]

#: Ports of URLs without one.
PORTS: Final = {"http": 80, "https": 443}

#: `name:port` of a URL -> host and port to connect to instead.
_aliases: dict[str, tuple[str, int]] = {}


def is_unauthorized(error: HttpError) -> bool:
    """True if the server answered 401."""
    return error.status == HTTPStatus.UNAUTHORIZED


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Server verification and client certificate. All files are PEM."""

    #: CAs trusted in addition to those for all servers.
    ca: bytes = b""
    #: The client's certificate with its chain, and its private key; both or none.
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    #: The name that the server's certificate must have; empty: the host of the URL.
    server_name: str = ""
    #: Whether the server's certificate is verified.
    verify: bool = True


#: Options of a server without any of its own.
USUAL_TLS: Final = TlsOptions()


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials and connection options of a request."""

    headers: Pairs = field(default=(), repr=False)
    params: Pairs = field(default=(), repr=False)
    tls: TlsOptions = USUAL_TLS
    #: URL of the proxy; None: by the usual environment variables. Direct: without any.
    proxy: str | None = None
    is_direct: bool = False
    #: To be masked in messages: all values sent from Secrets. A renewal adds the newer ones.
    secrets: Sequence[str] = field(default=(), repr=False)
    #: For display, one line each: what is sent, with `***` for secrets.
    shown: tuple[str, ...] = ()
    #: After a response that `is_outdated`, once: a renewed Access, by the deadline (time.monotonic()). Raises
    #: HttpError.
    renew: Callable[[float], Access] | None = field(default=None, repr=False)
    #: Whether this response says that the token is no longer accepted.
    is_outdated: Callable[[HttpError], bool] = field(default=is_unauthorized, repr=False)
    #: Adds a signature over the whole request.
    sign: Callable[[requests.PreparedRequest], None] | None = field(default=None, repr=False)

    def signed(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Return the request, with its signature where there is one; as an `auth` of requests."""
        if self.sign is not None:
            self.sign(request)
        return request


#: No credentials.
PLAIN: Final = Access()
#: The same for a server of the local network, without a proxy.
DIRECT: Final = Access(is_direct=True)


def bearer(token: str | None) -> Access:
    """With `Authorization: Bearer`; None sends none."""
    if not token:
        return PLAIN
    return Access((("Authorization", f"Bearer {token}"),), secrets=(token,), shown=("Authorization: Bearer ***",))


class Proxy(NamedTuple):
    """`url` may have a user and a password, `shown` has neither."""

    url: str
    shown: str


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
    try:
        parts = urlsplit(url)
        host, port = _aliases.get(f"{parts.hostname}:{parts.port or PORTS.get(parts.scheme, 0)}", ("", 0))
    except ValueError:
        # The request says that it is no address.
        return ""
    return f"{host}:{port}" if host else ""


def alias(host: str, port: int | None) -> tuple[str, int]:
    """Host and port to connect to for those of a URL."""
    return _aliases.get(f"{host}:{port}", (host, port or 0))


def proxy_for(url: str, access: Access) -> Proxy | None:
    """Return the proxy for a request to this URL, None for a direct one.

    Raises HttpError for a proxy that cannot be used.
    """
    if access.is_direct:
        return None
    if access.proxy is not None:
        # Secrets are sent through it only if released for a proxy that could read them.
        return _proxy("proxyURL", access.proxy)
    parts = urlsplit(url)
    if alias_of(url) or (access.secrets and parts.scheme == "http"):
        return None
    variable, value = _variable(f"{parts.scheme}_proxy")
    if not value or _is_direct(parts):
        return None
    # As in curl and Go, a name and a port are enough.
    return _proxy(variable, value if "://" in value else f"http://{value}")


def _variable(name: str) -> tuple[str, str]:
    for variable in (name, name.upper()):
        if value := os.environ.get(variable, "").strip():
            return variable, value
    return name, ""


def _proxy(variable: str, value: str) -> Proxy:
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        host, port = None, 0
    # TLS to a proxy would be TLS inside TLS, by urllib3's SSLTransport: that is no socket which a deadline could end.
    if not host or parts.scheme.lower() != "http":
        # Without the value: it may hold a password.
        raise HttpError(
            "connection_failed",
            f"{variable} is not the URL of a proxy as http://<host>:<port>; mend it, or add the server to NO_PROXY",
        )
    return Proxy(value, f"{host}:{port}")


def _is_direct(parts: SplitResult) -> bool:
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or PORTS[parts.scheme]
    address = _address(host)
    if address is not None:
        if address.is_loopback or address.is_unspecified:
            return True
    elif "." not in host or any(host.endswith(f".{end}") for end in ("svc", "cluster.local", "localhost")):
        return True
    return any(_excepts(entry, host, address, port) for entry in _variable("no_proxy")[1].replace(",", " ").split())


def _excepts(entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int) -> bool:
    """True if this entry of NO_PROXY, a network or a name and perhaps a port, stands for the server."""
    name, colon, tail = entry.lower().rpartition(":")
    # An IPv6 address is followed by a port only if it is in brackets.
    if not (colon and tail.isdigit() and (":" not in name or name.endswith("]"))):
        name = entry.lower()
    elif int(tail) != port:
        return False
    name = name.strip("[]").rstrip(".")
    try:
        network = ipaddress.ip_network(name, strict=False)
    except ValueError:
        # `.example.com` matches subdomains, `example.com` itself as well, `*` everything.
        name = name if name == "*" else name.removeprefix("*")
        return name == "*" or host == name or host.endswith(f".{name.removeprefix('.')}")
    return address is not None and address in network


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
