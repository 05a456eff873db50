"""Bounds the bodies that are being received together, so that many incomplete bodies do not fill the memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Body:
    """A request body that is being received. A body that `is_dropped` is refused, and its data was deleted."""

    def __init__(self, deadline: asyncio.Timeout) -> None:
        self.data = bytearray()
        self.deadline = deadline
        self.is_dropped = False


class Bodies:
    """All bodies that one scorer receives at a time."""

    def __init__(self, max_bytes: int) -> None:
        """Limit the bodies to `max_bytes` together."""
        self._max_bytes = max_bytes
        self._open_bodies: dict[Body, None] = {}

    @contextmanager
    def receiving(self, deadline: asyncio.Timeout) -> Iterator[Body]:
        """Yield a new body, to be received until the deadline."""
        body = Body(deadline)
        self._open_bodies[body] = None
        try:
            yield body
        finally:
            self._open_bodies.pop(body, None)

    def add(self, body: Body, piece: bytes) -> None:
        """Add a piece to a body, and drop the oldest bodies if all bodies together are too large.

        The oldest are dropped because a good client sends its body at once. Raises TimeoutError for a body that was
        dropped.
        """
        if body.is_dropped:
            raise TimeoutError
        body.data += piece
        while sum(len(open_body.data) for open_body in self._open_bodies) > self._max_bytes:
            oldest_body = next(iter(self._open_bodies))
            del self._open_bodies[oldest_body]
            oldest_body.data.clear()
            oldest_body.is_dropped = True
            oldest_body.deadline.reschedule(asyncio.get_running_loop().time())
