"""Listen addresses: `::` covers all addresses of the machine, IPv4 and IPv6."""

from __future__ import annotations

import socket
from socketserver import TCPServer
from typing import Any, Final

#: Every address of both families; every IPv4 address on a machine without IPv6.
EVERYWHERE: Final = "::"


def family_of(host: str) -> tuple[socket.AddressFamily, str]:
    """The family of an address or name to listen on, and what to bind. Raises OSError for an unknown name."""
    if host == EVERYWHERE and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"  # noqa: S104
    addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return addresses[0][0], host


def prepare(listener: socket.socket) -> None:
    """Allow an unbound socket to reuse its port immediately and, for IPv6, to accept IPv4 as well."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)


class Listening(TCPServer):
    """A server of the standard library that can listen on any address, including IPv6."""

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        host, port = address
        self.address_family, host = family_of(host)
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        """Bind for both families."""
        prepare(self.socket)
        super().server_bind()
