"""The connections of a scorer's server, divided among its clients.

uvicorn accepts any number of connections and waits without a limit for the request of each; its option
`limit_concurrency` counts silent connections too, so that a client without a request could keep all others out.

    uvicorn module:app --http dsf.scorer.connections:BoundedHttp
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Maximum connections of a server. An agent has one or two.
MAX_CONNECTIONS: Final = 256
#: Maximum bytes of a request's header, unless an option sets them, and maximum lines.
_MAX_HEAD_BYTES: Final = 64 * 1024
_MAX_HEAD_LINES: Final = 300
#: Minimum mean size in bytes of the chunks of a request's body, apart from the first ones.
_MIN_CHUNK_BYTES: Final = 64
_FREE_CHUNKS: Final = 200


class _BoundedParser(h11.Connection):
    """Parses the requests of a connection, and refuses those that take much time for their bytes.

    The parser takes as long for an empty line or a chunk of one byte as for a long one.
    """

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_head_bytes)
        self._chunks = 0
        self._chunk_bytes = 0

    def next_event(self) -> Any:
        """Return the next part of a request. Raises RemoteProtocolError."""
        if self.their_state is h11.IDLE:
            self._check_head()
            self._chunks = self._chunk_bytes = 0
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._chunks += 1
            self._chunk_bytes += len(event.data)
            if self._chunks > _FREE_CHUNKS + self._chunk_bytes // _MIN_CHUNK_BYTES:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        return event

    def _check_head(self) -> None:
        received_bytes, _ = self.trailing_data
        ends = [end for end in (received_bytes.find(b"\n\r\n"), received_bytes.find(b"\n\n")) if end >= 0]
        if received_bytes.count(b"\n", 0, min(ends, default=len(received_bytes))) > _MAX_HEAD_LINES:
            raise h11.RemoteProtocolError("the header has too many lines", error_status_hint=431)


class BoundedHttp(H11Protocol):
    """HTTP/1.1 on one of at most `MAX_CONNECTIONS` connections.

    A new connection above this limit replaces a connection of the client address that has the most. Of these, a
    connection without a whole request is closed first, then the connection without progress for the longest time.
    """

    _last_progress_at = 0.0

    def __init__(self, config: uvicorn.Config, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        self.conn = _BoundedParser(config.h11_max_incomplete_event_size or _MAX_HEAD_BYTES)

    def send_400_response(self, msg: str) -> None:
        """Refuse the request, and close the connection. If the response has already begun, only close it."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

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
