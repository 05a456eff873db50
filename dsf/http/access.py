"""Access to one server: credentials, server verification, the secrets to mask, and the proxy or alias to connect to.

The environment variables HTTP_PROXY, HTTPS_PROXY and NO_PROXY apply, in upper or lower case. OCM sets them in agents
from `proxyConfig`. These requests never use the proxy of the environment:

- requests to this machine or this cluster, because a proxy outside of the cluster cannot reach them;
- requests with a token over plain http, because the proxy could read the token. Over https a proxy sees only the name
  of the server.
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

#: Headers or parameters as `(name, value)`, in the order in which they are sent.
Pairs = tuple[tuple[str, str], ...]

#: Endings of names that belong to this cluster or this machine.
_LOCAL_SUFFIXES: Final = (".svc", ".cluster.local", ".localhost")

#: Default port by URL scheme.
PORTS: Final = {"http": 80, "https": 443}

#: Host and port to connect to, by `name:port` of a URL.
_aliases: dict[str, tuple[str, int]] = {}


def is_unauthorized(error: HttpError) -> bool:
    """Return True if the status of the response was 401."""
    return error.status == HTTPStatus.UNAUTHORIZED


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The options for server verification, and the client certificate. Certificates and key are PEM."""

    #: CAs that are trusted for this server, in addition to the CAs that are trusted for all servers.
    ca: bytes = b""
    #: Client certificate with its chain. Set together with `key`.
    certificate: bytes = b""
    #: Private key of the client certificate.
    key: bytes = field(default=b"", repr=False)
    #: Name that the server's certificate must contain. If empty, the host of the URL is used.
    server_name: str = ""
    #: True if the server's certificate is verified.
    verify: bool = True


#: Options for servers that configure none.
DEFAULT_TLS: Final = TlsOptions()


@dataclass(frozen=True, slots=True)
class Access:
    """The credentials and connection options of a request."""

    headers: Pairs = field(default=(), repr=False)
    params: Pairs = field(default=(), repr=False)
    tls: TlsOptions = DEFAULT_TLS
    #: URL of the proxy. If None, the environment variables decide.
    proxy: str | None = None
    #: True to bypass all proxies.
    is_direct: bool = False
    #: Values from Secrets, which messages mask. A renewal adds the new values.
    secrets: Sequence[str] = field(default=(), repr=False)
    #: Lines for display that describe the credentials, with `***` for secrets.
    display_lines: tuple[str, ...] = ()
    #: Returns an Access with a new token, before a deadline on the clock of time.monotonic(). Called at most once per
    #: request, after a response for which `is_outdated` is True. Raises HttpError.
    renew: Callable[[float], Access] | None = field(default=None, repr=False)
    #: True if the error means that the server no longer accepts the token.
    is_outdated: Callable[[HttpError], bool] = field(default=is_unauthorized, repr=False)
    #: Adds a signature over the whole request.
    sign: Callable[[requests.PreparedRequest], None] | None = field(default=None, repr=False)

    def sign_request(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Sign the request if the Access has a `sign` function, and return it. Serves as `auth` of requests."""
        if self.sign is not None:
            self.sign(request)
        return request


#: Access without credentials.
PLAIN: Final = Access()
#: Access without credentials to a server of the local network, which bypasses proxies.
DIRECT: Final = Access(is_direct=True)


def make_bearer_access(token: str | None) -> Access:
    """Return the Access that sends `Authorization: Bearer`, or no credentials without a token."""
    if not token:
        return PLAIN
    return Access(
        (("Authorization", f"Bearer {token}"),), secrets=(token,), display_lines=("Authorization: Bearer ***",)
    )


class Proxy(NamedTuple):
    """A proxy for requests."""

    #: URL, which may contain a password.
    url: str
    #: `host:port` for display.
    display_address: str


def set_aliases(aliases: Mapping[str, str]) -> None:
    """Connect to `address:port` for URLs with `name:port` in the whole process, like a pod's hostAliases.

    The Host header and the verification of the certificate still use the name. Raises ValueError for a value that is
    not `address:port`.
    """
    parsed_aliases: dict[str, tuple[str, int]] = {}
    for name, target in aliases.items():
        host, _, port = target.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{target!r} is not <address>:<port>")
        parsed_aliases[name.lower()] = (host, int(port))
    _aliases.clear()
    _aliases.update(parsed_aliases)


def find_alias(url: str) -> str:
    """Return the `address:port` to which a request to the URL connects; empty if its host has no alias."""
    try:
        parts = urlsplit(url)
        host, port = _aliases.get(f"{parts.hostname}:{parts.port or PORTS.get(parts.scheme, 0)}", ("", 0))
    except ValueError:
        # An invalid URL has no alias. The request itself raises the error.
        return ""
    return f"{host}:{port}" if host else ""


def resolve_alias(host: str, port: int | None) -> tuple[str, int]:
    """Return the host and port to connect to for the host and port of a URL."""
    return _aliases.get(f"{host}:{port}", (host, port or 0))


def find_proxy(url: str, access: Access) -> Proxy | None:
    """Return the proxy for a request to the URL; None for a direct request.

    Raises HttpError if the URL of the proxy is invalid.
    """
    if access.is_direct:
        return None
    if access.proxy is not None:
        # Secrets may pass this proxy, because they are read only if they are released for it (CredentialsBuilder).
        return _parse_proxy("proxyURL", access.proxy)
    parts = urlsplit(url)
    if find_alias(url) or (access.secrets and parts.scheme == "http"):
        return None
    variable, value = _read_variable(f"{parts.scheme}_proxy")
    if not value or _bypasses_proxy(parts):
        return None
    # Accept `host:port` without a scheme, as curl and Go do.
    return _parse_proxy(variable, value if "://" in value else f"http://{value}")


def _read_variable(name: str) -> tuple[str, str]:
    """Return name and value of the environment variable in lower or upper case; an empty value if it is not set."""
    for variable in (name, name.upper()):
        if value := os.environ.get(variable, "").strip():
            return variable, value
    return name, ""


def _parse_proxy(variable: str, value: str) -> Proxy:
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        host, port = None, 0
    # Refuse https proxies, because urllib3 wraps TLS inside TLS in an SSLTransport, which is not a socket that could be
    # shut down at the deadline.
    if not host or parts.scheme.lower() != "http":
        # Do not quote the value, because it may contain a password.
        raise HttpError(
            "connection_failed",
            f"{variable} is not the URL of a proxy as http://<host>:<port>; mend it, or add the server to NO_PROXY",
        )
    return Proxy(value, f"{host}:{port}")


def _bypasses_proxy(parts: SplitResult) -> bool:
    """Return True if the URL belongs to this machine or this cluster, or matches NO_PROXY."""
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or PORTS[parts.scheme]
    address = _parse_address(host)
    if address is not None:
        if address.is_loopback or address.is_unspecified:
            return True
    elif "." not in host or host.endswith(_LOCAL_SUFFIXES):
        return True
    entries = _read_variable("no_proxy")[1].replace(",", " ").split()
    return any(_matches_no_proxy(entry, host, address, port) for entry in entries)


def _matches_no_proxy(
    entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int
) -> bool:
    """Return True if an entry of NO_PROXY matches the server. An entry is a network or a name, with or without port."""
    name, colon, port_text = entry.lower().rpartition(":")
    # An IPv6 address has a port only if the address is in brackets.
    if not (colon and port_text.isdigit() and (":" not in name or name.endswith("]"))):
        name = entry.lower()
    elif int(port_text) != port:
        return False
    name = name.strip("[]").rstrip(".")
    try:
        network = ipaddress.ip_network(name, strict=False)
    except ValueError:
        # `.example.com` matches subdomains only, `example.com` also matches the domain itself, and `*` matches all.
        name = name if name == "*" else name.removeprefix("*")
        return name == "*" or host == name or host.endswith(f".{name.removeprefix('.')}")
    return address is not None and address in network


def _parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
