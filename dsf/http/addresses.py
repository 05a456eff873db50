"""Resolution of host names, and refusal of addresses at which clouds serve credentials.

Addresses are checked because the author of a scorer chooses its URLs, while hub and agents may reach servers that the
author cannot. Connections are opened only to the addresses that were checked, so a name that resolves to another
address a moment later does not bypass the check.
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
from dsf.http.access import resolve_alias
from dsf.http.deadline import Exchange
from dsf.process.threads import run_in_background
from dsf.text import clean

#: Maximum seconds to connect to one address. A server in the same cluster accepts within milliseconds, and the response
#: needs the remaining time.
CONNECT_TIMEOUT: Final = 3.0

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: Results of socket.getaddrinfo.
_AddressInfos = list[tuple[Any, ...]]

#: Addresses of the clouds' metadata services that are not link-local.
_METADATA_NETWORKS: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "fd00:ec2::/32",  # AWS, of instances and of pods
        "fd20:ce::254",  # Google
        "fd00:42::42",  # Scaleway
        "fd00:a9fe:a9fe::1",  # Akamai
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure
        "192.0.0.192",  # Oracle
    )
)
#: IPv6 prefixes of 96 bits, which are followed by an IPv4 address: mapped, translated (SIIT, NAT64), and compatible.
_EMBEDDING_NETWORKS: Final = tuple(
    ipaddress.IPv6Network(f"{prefix}/96") for prefix in ("::ffff:0:0", "::ffff:0:0:0", "64:ff9b::", "::")
)
#: Network from which a site derives its own NAT64 prefix, of 48 to 96 bits (RFC 8215).
_SITE_NAT64: Final = ipaddress.IPv6Network("64:ff9b:1::/48")

#: Names of metadata services. A proxy may be able to resolve them although this host cannot.
_METADATA_NAMES: Final = frozenset(
    {
        *("metadata.google.internal", "metadata.goog", "metadata"),
        *("instance-data.ec2.internal", "instance-data", "metadata.tencentyun.com"),
    }
)

_HOW_TO_ALLOW: Final = "DSF_ALLOW_LINK_LOCAL=true allows such requests"

#: True if all exchanges of this process may use link-local and metadata addresses. `Exchange.allows_link_local` is the
#: same for one exchange.
_process_allows_link_local = False


def allow_link_local(allowed: bool) -> None:
    """Allow or refuse link-local and metadata addresses in this process (DSF_ALLOW_LINK_LOCAL)."""
    global _process_allows_link_local  # noqa: PLW0603 - a setting of the whole process
    _process_allows_link_local = allowed


def is_link_local_or_metadata(address: str) -> bool:
    """Return True if an IP address is link-local or a cloud's metadata service, including IPv4 embedded in IPv6."""
    return any(
        candidate.is_link_local or any(candidate in network for network in _METADATA_NETWORKS)
        for candidate in _find_reachable_addresses(ipaddress.ip_address(address))
    )


def _find_reachable_addresses(address: _Address) -> tuple[_Address, ...]:
    """Return the addresses to which packets for `address` may be delivered: itself, or IPv4 addresses embedded in it.

    The NAT64 network of a site has several, one for each prefix length, because the length is unknown.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    bits = int(address)
    unscoped_address = ipaddress.IPv6Address(bits)
    if unscoped_address.sixtofour is not None:
        return (unscoped_address.sixtofour,)
    if unscoped_address in _SITE_NAT64:
        # RFC 6052: the prefix has 48, 56, 64 or 96 bits. The IPv4 address follows it, but skips the ninth octet.
        bits_without_octet = (bits >> 64 << 56) | (bits & ((1 << 56) - 1))
        shifted_bits = (bits, bits_without_octet >> 40, bits_without_octet >> 32, bits_without_octet >> 24)
        return tuple(map(_extract_ipv4, shifted_bits))
    # `::` and `::1` are in the network of compatible addresses, but embed no IPv4 address.
    if any(unscoped_address in network for network in _EMBEDDING_NETWORKS) and bits > 1:
        return (_extract_ipv4(bits),)
    return (unscoped_address,)


def _extract_ipv4(bits: int) -> ipaddress.IPv4Address:
    """Return the IPv4 address in the last 32 bits."""
    return ipaddress.IPv4Address(bits & 0xFFFFFFFF)


def resolve_allowed(host: str, port: int | None, exchange: Exchange) -> list[tuple[str, int]]:
    """Return the addresses and ports of a host, or of its alias, in the order in which to try them.

    Callers must connect to these addresses only. Raises HttpError (address_refused) if any address is refused, and the
    errors of urllib3 and of the operating system.
    """
    host, port = resolve_alias(host, port)
    infos = _resolve(host, port, exchange.require_remaining_seconds())
    if not exchange.allows_link_local:
        _check_addresses(host, infos)
    return [(str(address[0]), port) for *_, address in infos]


def check_proxied_url(url: str, exchange: Exchange) -> None:
    """Raise HttpError (address_refused) if a direct request to the URL would be refused.

    A host name that cannot be resolved here is accepted, because often only the proxy can resolve it. Names of metadata
    services, and addresses in any notation, are always checked. Raises TimeoutError if the deadline has passed.
    """
    parts = urlsplit(url)
    host = unquote(parts.hostname or "").lower().rstrip(".")
    if not _process_allows_link_local and host in _METADATA_NAMES:
        raise HttpError(
            "address_refused", f"{host} is a metadata service, to which requests are refused ({_HOW_TO_ALLOW})"
        )
    try:
        infos = _resolve(host, parts.port or 0, min(CONNECT_TIMEOUT, exchange.require_remaining_seconds()))
    except (NameResolutionError, TimeoutError):
        # Raises if the deadline has passed, so that nothing is sent after it.
        exchange.require_remaining_seconds()
        return
    _check_addresses(host, infos)


def _check_addresses(host: str, infos: _AddressInfos) -> None:
    """Raise HttpError (address_refused) if any address of the host is link-local or a metadata service."""
    for *_, address in infos:
        if not _process_allows_link_local and is_link_local_or_metadata(str(address[0])):
            raise HttpError(
                "address_refused",
                f"{host} resolves to {address[0]}, a link-local or metadata address, to which requests are refused "
                f"({_HOW_TO_ALLOW})",
            )


def _resolve(host: str, port: int, seconds: float) -> _AddressInfos:
    """Return the host's addresses. Raises TimeoutError after `seconds`, and the errors of the lookup.

    Names are looked up in a thread, because an unresponsive name server would block the caller for half a minute.
    """
    results: queue.SimpleQueue[_AddressInfos | Exception] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            results.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except Exception as error:  # noqa: BLE001 (raised below, in the caller's thread)
            results.put(error)

    if _is_numeric(host):
        look_up()
    else:
        run_in_background(look_up, "dsf-http-names")
    try:
        result = results.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(result, socket.gaierror):
        raise NameResolutionError(host, HTTPConnection(host), result) from result
    if isinstance(result, UnicodeError):
        raise HttpError("connection_failed", f"{clean(host, 100)}: the host name is invalid")
    if isinstance(result, Exception):
        raise result
    return result


def _is_numeric(host: str) -> bool:
    """Return True if the host is an IP address in any notation, such as one number or octal digits.

    Numeric hosts need no DNS lookup.
    """
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    with contextlib.suppress(ValueError, OSError):
        socket.inet_aton(host)
        return True
    return False
