"""uvicorn's HTTP protocol with a timeout for the header of each request.

uvicorn waits for ever for the rest of a head; a few hundred half-sent ones hold as many connections and files.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds for the head of a request, from the connection or from its first byte on.
HEAD_SECONDS: Final = 10.0


class PatientProtocol(H11Protocol):
    """For `http=` of uvicorn's configuration."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As it was; the first head has its time from here on."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """As it was; a head that has begun has its time, and one that is whole needs none."""
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._drop()
        elif self._head is None and (before is None or before.response_complete):
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """As it was."""
        self._drop()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _drop(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None
