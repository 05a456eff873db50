"""Resolves hosts for connecting to them, except addresses at which clouds serve credentials.

The author of a scorer chooses URLs, and hub and agents may reach more than the author. The check is part of connecting:
only checked addresses are connected to, so a name that resolves differently a moment later gains nothing.
"""

from __future__ import annotations

import contextlib
import ipaddress
import queue
import socket
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from urllib3.connection import HTTPConnection
from urllib3.exceptions import NameResolutionError

from dsf.errors import HttpError
from dsf.http.access import alias
from dsf.http.deadline import Exchange
from dsf.process.threads import background
from dsf.text import cleaned

#: Seconds to connect to one address. A server in the same cluster takes milliseconds; the rest is for its work.
CONNECT_TIMEOUT: Final = 3.0

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Resolved = list[tuple[Any, ...]]

#: Metadata services that are not at a link-local address: AWS (of instances and of pods), Google, Scaleway and Akamai
#: over IPv6, Alibaba, Azure, Oracle.
_METADATA: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("fd00:ec2::/32", "fd20:ce::254", "fd00:42::42", "fd00:a9fe:a9fe::1"),
        *("100.100.100.200", "168.63.129.16", "192.0.0.192"),
    )
)
#: IPv6 prefixes of 96 bits that embed an IPv4 address: mapped, translated (SIIT, NAT64), and compatible.
_EMBEDDING: Final = tuple(
    ipaddress.IPv6Network(f"{prefix}/96") for prefix in ("::ffff:0:0", "::ffff:0:0:0", "64:ff9b::", "::")
)
#: For the NAT64 of a site (RFC 8215), which derives its prefix of 48 to 96 bits from it.
_SITE_NAT64: Final = ipaddress.IPv6Network("64:ff9b:1::/48")

#: Names of metadata services that a proxy may resolve although this host cannot.
_METADATA_NAMES: Final = frozenset(
    {
        *("metadata.google.internal", "metadata.goog", "metadata"),
        *("instance-data.ec2.internal", "instance-data", "metadata.tencentyun.com"),
    }
)

_ALLOWED: Final = "DSF_ALLOW_LINK_LOCAL=true lets it"

_is_allowed = False


def allow_link_local(allowed: bool) -> None:
    """Allow link-local and metadata addresses in this process (DSF_ALLOW_LINK_LOCAL)."""
    global _is_allowed  # noqa: PLW0603 - one per process, as with the CAs
    _is_allowed = allowed


def is_refused(address: str) -> bool:
    """True if an IP address is link-local or a cloud's metadata service, also as IPv4 embedded in IPv6."""
    return any(
        candidate.is_link_local or any(candidate in network for network in _METADATA)
        for candidate in _meant(ipaddress.ip_address(address))
    )


def _meant(address: _Address) -> tuple[_Address, ...]:
    """The addresses this may lead to: itself, or embedded IPv4."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    bits = int(address)
    plain = ipaddress.IPv6Address(bits)  # without the scope
    if plain.sixtofour is not None:
        return (plain.sixtofour,)
    if plain in _SITE_NAT64:
        # RFC 6052: after 96, 48, 56 or 64 bits, around the ninth octet. The site's choice is not known.
        around = (bits >> 64 << 56) | (bits & ((1 << 56) - 1))
        return tuple(_last_32(shifted) for shifted in (bits, around >> 40, around >> 32, around >> 24))
    if any(plain in network for network in _EMBEDDING) and bits > 1:
        return (_last_32(bits),)
    return (plain,)


def _last_32(bits: int) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(bits & 0xFFFFFFFF)


def checked(host: str, port: int | None, exchange: Exchange) -> list[tuple[str, int]]:
    """Return the addresses of a host, or of its alias, to connect to, in order; one connects to these alone.

    Raises HttpError (address_refused) when any of them is refused, and errors of urllib3 and of the operating system.
    """
    host, port = alias(host, port)
    resolved = _resolve(host, port, exchange.remaining())
    if not exchange.is_for_keys:
        _refuse(host, resolved)
    return [(str(address[0]), port) for *_, address in resolved]


def check(url: str, exchange: Exchange) -> None:
    """Raise HttpError (address_refused) for a request through a proxy that `connect` would refuse.

    A name that cannot be resolved here is left to the proxy, which is often the only one that can. Names of
    metadata services, and addresses in any notation, are never left to it.
    """
    parts = urlsplit(url)
    host = unquote(parts.hostname or "").lower().rstrip(".")
    if not _is_allowed and host in _METADATA_NAMES:
        raise HttpError("address_refused", f"{host} is a metadata service, which is not asked ({_ALLOWED})")
    try:
        resolved = _resolve(host, parts.port or 0, min(CONNECT_TIMEOUT, exchange.remaining()))
    except (NameResolutionError, TimeoutError):
        # After the deadline nothing is sent any more.
        exchange.remaining()
        return
    _refuse(host, resolved)


def _refuse(host: str, resolved: _Resolved) -> None:
    for *_, address in resolved:
        if not _is_allowed and is_refused(str(address[0])):
            raise HttpError(
                "address_refused",
                f"{host} stands for {address[0]}, a link-local or metadata address, which is not asked ({_ALLOWED})",
            )


def _resolve(host: str, port: int, seconds: float) -> _Resolved:
    """Return the host's addresses.

    In a thread: an unresponsive name server would block the caller for half a minute.
    """
    answers: queue.SimpleQueue[_Resolved | Exception] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except Exception as error:  # noqa: BLE001 (raised below, in the thread that asked)
            answers.put(error)

    if _is_numeric(host):
        look_up()
    else:
        background(look_up, "dsf-http-names")
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(answer, socket.gaierror):
        raise NameResolutionError(host, HTTPConnection(host), answer) from answer
    if isinstance(answer, UnicodeError):
        raise HttpError("connection_failed", f"{cleaned(host, 100)}: the host name is no name that a host can have")
    if isinstance(answer, Exception):
        raise answer
    return answer


def _is_numeric(host: str) -> bool:
    """True if it needs no DNS lookup: an address, also as one number or in octal."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    with contextlib.suppress(ValueError, OSError):
        socket.inet_aton(host)
        return True
    return False
