"""Bounds the bodies that are being received together, so that many incomplete ones do not fill the memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Body:
    """One body. Its deadline has passed if `is_dropped`."""

    def __init__(self, deadline: asyncio.Timeout) -> None:
        self.data = bytearray()
        self.deadline = deadline
        self.is_dropped = False


class Bodies:
    """All bodies that one scorer receives at a time."""

    def __init__(self, max_bytes: int) -> None:
        """Limit the bodies to `max_bytes` together."""
        self._most = max_bytes
        self._open: dict[Body, None] = {}

    @contextmanager
    def receiving(self, deadline: asyncio.Timeout) -> Iterator[Body]:
        """Yield a new body, which can be received until a deadline."""
        body = Body(deadline)
        self._open[body] = None
        try:
            yield body
        finally:
            self._open.pop(body, None)

    def add(self, body: Body, piece: bytes) -> None:
        """Add a piece to a body, and drop the oldest bodies if the total is too large: good clients send their body at
        once. If it is too much, drop those that began first: a good client sends its body at once.

        Raises TimeoutError for a body that was dropped.
        """
        if body.is_dropped:
            raise TimeoutError
        body.data += piece
        while sum(len(pending.data) for pending in self._open) > self._most:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.data.clear()
            oldest.is_dropped = True
            oldest.deadline.reschedule(asyncio.get_running_loop().time())
