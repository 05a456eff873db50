"""uvicorn's HTTP protocol with limits on what clients without a login can hold.

uvicorn waits forever for the rest of a header and for a client that does not read its answer, and accepts any number of
connections. Here a header and the sending of an answer have a deadline, and connections and unsent answers a maximum.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]

#: Seconds for the header of a request, from the connection or its first byte on.
HEAD_SECONDS: Final = 10.0
#: Seconds for a client to read an answer: 20 MB of metrics over a slow link between two sites.
SEND_SECONDS: Final = 60.0
#: Connections of a server. A browser opens six; one that is idle closes after five seconds, or earlier for a new one.
MOST_CONNECTIONS: Final = 256
#: Bytes of answers that all clients together have not read: a part of the smallest memory limit of the chart (256 MB).
MOST_UNSENT: Final = 64 * 1024 * 1024
#: Bytes of an answer that the connection gets at a time: it copies them, and an application may have one object for all
#: its clients.
_PIECE: Final = 64 * 1024


class PatientProtocol(H11Protocol):
    """For `http=` of uvicorn's configuration, or `--http dsf.scorer.protocol:PatientProtocol`."""

    #: The loop's time at which this connection, or the header of its newest request, began.
    _since: float = 0.0
    _head: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None
    #: Bytes of the answer that the connection was not given yet.
    _rest: int = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.app = self._in_pieces(self.app)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Also starts the timeout of the first header; if there are too many, closes an idle or the oldest one."""
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > MOST_CONNECTIONS:
            others = [connection for connection in self._all() if connection is not self]
            # What is not idle for longest waits for its client, who reads slowly or does not send the body.
            next((connection for connection in others if connection.is_idle), others[0]).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Also starts the timeout at a new header, and cancels it when complete."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._drop_head()
        elif self._head is None and self.is_idle:
            self._await_head()

    def pause_writing(self) -> None:
        """Also starts the timeout of the answer, and closes the oldest such connections if too much is unsent."""
        super().pause_writing()
        if self._sending is None:
            self._sending = self.loop.call_later(SEND_SECONDS, self.transport.abort)
        slow = [connection for connection in self._all() if connection.unsent]
        total = sum(connection.unsent for connection in slow)
        # Never the only one: a single answer may be larger than the maximum.
        while total > MOST_UNSENT and len(slow) > 1:
            oldest = slow.pop(0)
            total -= oldest.unsent
            oldest.transport.abort()

    def resume_writing(self) -> None:
        """Also cancels the timeout of the answer, if that is all of it."""
        super().resume_writing()
        if not self._rest:
            self._drop_sending()

    def connection_lost(self, exc: Exception | None) -> None:
        """Also cancels the timeouts."""
        self._drop_head()
        self._drop_sending()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being received or answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def unsent(self) -> int:
        """Bytes of an answer that the client has not read, if it reads slowly."""
        return 0 if self._sending is None else self.transport.get_write_buffer_size() + self._rest

    def _in_pieces(self, app: Any) -> Any:
        """The application, whose large answers are sent as fast as the client reads them."""

        async def answer(scope: Any, receive: Any, send: _Send) -> None:
            async def send_pieces(message: _Message) -> None:
                body, start = message.get("body", b""), 0
                while len(body) - start > _PIECE:
                    self._rest = len(body) - start
                    await send({**message, "body": body[start : start + _PIECE], "more_body": True})
                    start += _PIECE
                await send({**message, "body": body[start:]} if start else message)
                self._rest = 0
                if not self.flow.write_paused:
                    self._drop_sending()

            await app(scope, receive, send_pieces)

        return answer

    def _all(self) -> list[PatientProtocol]:
        """The connections of this server, oldest first."""
        return sorted(
            (connection for connection in self.connections if isinstance(connection, PatientProtocol)),
            key=lambda connection: connection._since,
        )

    def _await_head(self) -> None:
        self._since = self.loop.time()
        self._head = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _drop_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _drop_sending(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
