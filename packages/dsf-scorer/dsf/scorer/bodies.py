"""Bounds the request bodies in memory, of all scorers of an application together.

Bodies that are being received have one bound, so that many incomplete bodies do not fill the memory. Bodies that are
being scored have another one, because a parsed body takes several times the memory of its text.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Maximum bytes of a body that neither waits for others nor is refused because of them. The number of such bodies is
#: bounded by the number of connections.
_SMALL_BYTES: Final = 256 * 1024


class Body:
    """A request body that is being received. A body that `is_dropped` is refused, and its data was deleted."""

    def __init__(self, deadline: asyncio.Timeout) -> None:
        self.data = bytearray()
        self.deadline = deadline
        self.is_complete = False
        self.is_dropped = False


class Bodies:
    """All bodies in memory. Methods must be called in the event loop."""

    def __init__(self, max_bytes: int) -> None:
        """Limit the bodies that are being received to `max_bytes`, and also those that are being scored."""
        self._max_bytes = max_bytes
        self._small_bytes = min(_SMALL_BYTES, max_bytes // 8)
        self._open_bodies: dict[Body, None] = {}
        self._free_bytes = max_bytes
        #: (size, future that admits it) of each complete body that waits to be scored, the oldest first.
        self._waiting_bodies: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextmanager
    def receiving(self, deadline: asyncio.Timeout) -> Iterator[Body]:
        """Yield a new body, to be received until the deadline. It counts as being received until the end of the block.

        The caller sets `is_complete` when the whole body has arrived.
        """
        body = Body(deadline)
        self._open_bodies[body] = None
        try:
            yield body
        finally:
            self._open_bodies.pop(body, None)

    def add(self, body: Body, piece: bytes) -> None:
        """Add a piece to a body, and drop the oldest incomplete bodies if all bodies together are too large.

        The oldest are dropped because a good client sends its body at once. Raises TimeoutError for a body that was
        dropped.
        """
        if body.is_dropped:
            raise TimeoutError
        body.data += piece
        if len(body.data) <= self._small_bytes:
            return
        while sum(len(open_body.data) for open_body in self._open_bodies) > self._max_bytes:
            # This body is incomplete, so there is at least one.
            oldest_body = next(open_body for open_body in self._open_bodies if not open_body.is_complete)
            del self._open_bodies[oldest_body]
            oldest_body.data.clear()
            oldest_body.is_dropped = True
            if oldest_body is body:
                raise TimeoutError
            oldest_body.deadline.reschedule(asyncio.get_running_loop().time())

    async def wait_for_memory(self, size: int) -> None:
        """Wait until a body of `size` bytes may be scored, after the bodies that waited before it.

        Call `release` afterwards.
        """
        if size <= self._small_bytes:
            return
        admission = asyncio.get_running_loop().create_future()
        self._waiting_bodies.append((size, admission))
        self._admit()
        try:
            await admission
        except BaseException:
            if not admission.cancelled():
                self.release(size)
            elif (size, admission) in self._waiting_bodies:
                self._waiting_bodies.remove((size, admission))
                self._admit()
            raise

    def release(self, size: int) -> None:
        """Release the memory of a body of `size` bytes that was scored."""
        if size > self._small_bytes:
            self._free_bytes += size
            self._admit()

    def _admit(self) -> None:
        """Admit waiting bodies while the oldest one fits."""
        while self._waiting_bodies and self._waiting_bodies[0][0] <= self._free_bytes:
            size, admission = self._waiting_bodies.popleft()
            if not admission.cancelled():
                self._free_bytes -= size
                admission.set_result(None)
