"""The connections of a scorer's server, divided among its clients.

uvicorn accepts any number of connections and waits without a limit for the request of each; its option
`limit_concurrency` counts silent connections too, so that a client without a request could keep all others out.

    uvicorn module:app --http dsf.scorer.connections:BoundedHttp
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

#: Maximum connections of a server. An agent has one or two.
MAX_CONNECTIONS: Final = 256


class BoundedHttp(H11Protocol):
    """HTTP/1.1 on one of at most `MAX_CONNECTIONS` connections.

    A new connection above this limit replaces a connection of the client address that has the most. Of these, a
    connection without a whole request is closed first, then the connection without progress for the longest time.
    """

    _last_progress_at = 0.0

    @property
    def is_working(self) -> bool:
        """True if a whole request is being processed."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    @property
    def client_key(self) -> object:
        """Key by which connections of a client are counted: an address, of IPv6 the network that a host gets."""
        host = self.client[0] if self.client else ""
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return host
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
            return address.packed[:8]
        return address

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, and close another one if there are too many."""
        super().connection_made(transport)
        self._last_progress_at = self.loop.time()
        other_connections = [
            connection
            for connection in self.connections
            if isinstance(connection, BoundedHttp) and connection is not self
        ]
        if len(other_connections) >= MAX_CONNECTIONS:
            _evict(other_connections)

    def on_response_complete(self) -> None:
        """Record the progress of the client."""
        self._last_progress_at = self.loop.time()
        super().on_response_complete()


def _evict(connections: list[BoundedHttp]) -> None:
    counts = Counter(connection.client_key for connection in connections)
    max_count = max(counts.values())
    slowest_connection = min(
        (connection for connection in connections if counts[connection.client_key] == max_count),
        key=lambda connection: (connection.is_working, connection._last_progress_at),
    )
    # Otherwise the server would count this connection until its transport is closed.
    slowest_connection.connections.discard(slowest_connection)
    slowest_connection.transport.abort()
