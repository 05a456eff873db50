"""uvicorn's HTTP protocol with a timeout for the header of each request.

uvicorn waits forever for the rest of a header; a few hundred partial ones hold as many connections and files.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds for the header of a request, from the connection or its first byte on.
HEAD_SECONDS: Final = 10.0


class PatientProtocol(H11Protocol):
    """For `http=` of uvicorn's configuration."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Also starts the timeout of the first header."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Also starts the timeout at a new header, and cancels it when complete."""
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
