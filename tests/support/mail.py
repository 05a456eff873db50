"""Results that agents have sent and no results worker has ingested."""

from __future__ import annotations

import redis

from dsf import keys


class Sent:
    """Takes results of one cluster out of its mailbox, in the order in which its agent puts them in."""

    def __init__(self, client: redis.Redis, cluster: str) -> None:
        self._redis = client
        self._slots = keys.mail_slots(cluster)
        self._next = 0

    def take(self) -> str | None:
        """Return the oldest one, or None."""
        for step in range(len(self._slots)):
            slot = (self._next + step) % len(self._slots)
            body = self._redis.getdel(self._slots[slot])
            if body is not None:
                self._next = slot + 1
                return str(body)
        return None

    def count(self) -> int:
        """How many there are."""
        return int(self._redis.exists(*self._slots))

    def texts(self) -> list[str]:
        """Return all that are there, as they were sent; they stay."""
        return [str(text) for text in self._redis.mget(self._slots) if text is not None]
