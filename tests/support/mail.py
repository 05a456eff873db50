"""Results that agents have put into their mailbox and that no results worker has ingested."""

from __future__ import annotations

import redis

from dsf import keys


class MailboxReader:
    """Reads the results of one cluster from its mailbox, in the order in which its agent puts them in."""

    def __init__(self, client: redis.Redis, cluster: str) -> None:
        self._redis = client
        self._slots = keys.mail_slots(cluster)
        self._next = 0

    def take(self) -> str | None:
        """Remove and return the oldest result, or None."""
        for step in range(len(self._slots)):
            slot = (self._next + step) % len(self._slots)
            body = self._redis.getdel(self._slots[slot])
            if body is not None:
                self._next = slot + 1
                return str(body)
        return None

    def count(self) -> int:
        """Return the number of results."""
        return int(self._redis.exists(*self._slots))

    def texts(self) -> list[str]:
        """Return all results as they were sent, without removing them."""
        return [str(text) for text in self._redis.mget(self._slots) if text is not None]
