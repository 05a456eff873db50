"""The agent's mailbox on the hub: a few slots, each for one result, that the hub empties.

It is all that an agent may write: when every slot is taken the hub is behind, and the agent keeps what it has. A hub of
the last release has no mailboxes; its agents push into a list.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import redis

import dsf.log
from dsf import keys

log = dsf.log.get(__name__)

#: Seconds for which a way that the hub does not allow is not tried again: it may be upgraded, or taken back.
_TRY_AGAIN: Final = 60.0


class Mailbox:
    """Puts messages where the hub takes them. Thread-safe."""

    def __init__(self, client: redis.Redis, cluster: str) -> None:
        self._redis = client
        self._slots = keys.mail_slots(cluster)
        self._bell = keys.mail_bell(cluster)
        self._lock = threading.Lock()
        self._next = 0
        # Until when (time.monotonic()) there is taken to be no mailbox, and no list.
        self._no_mailbox_until = 0.0
        self._no_list_until = 0.0

    def put(self, message: bytes) -> bool:
        """Put a message in; False when every slot is taken. One round trip, unless the hub is behind.

        Raises redis.RedisError when Redis is away, full, or allows this agent neither way.
        """
        if time.monotonic() < self._no_mailbox_until and self._push(message):
            return True
        try:
            number, hears = self._put(message)
        except redis.exceptions.NoPermissionError:
            if not self._push(message):
                raise
            self._no_mailbox_until = time.monotonic() + _TRY_AGAIN
            return True
        if number is not None:
            return True
        # No collector listens: the results workers are away, or an old hub lets every agent write everywhere.
        return not hears and self._push(message)

    def _put(self, message: bytes) -> tuple[int | None, bool]:
        """The slot that was taken, if one was free, and whether the hub listens."""
        with self._lock:
            first = self._next
            self._next = (first + 1) % keys.MAIL_SLOTS
        is_put, hears = self._try(first, message)
        if is_put:
            return first, hears
        pipe: Any = self._redis.pipeline(transaction=False)
        with pipe:
            for slot in self._slots:
                pipe.exists(slot)
            taken = pipe.execute()
        for step in range(1, keys.MAIL_SLOTS):
            number = (first + step) % keys.MAIL_SLOTS
            if not taken[number]:
                # Another thread may have been faster.
                is_put, hears = self._try(number, message)
                if is_put:
                    return number, hears
        return None, hears

    def _try(self, number: int, message: bytes) -> tuple[bool, bool]:
        pipe: Any = self._redis.pipeline(transaction=False)
        with pipe:
            pipe.set(self._slots[number], message, nx=True)
            # Also when it is taken: the hub may not have heard the last bell.
            pipe.publish(self._bell, number)
            is_put, heard = pipe.execute()
        return bool(is_put), heard > 0

    def _push(self, message: bytes) -> bool:
        """As the last release did; says whether the hub still allows it."""
        if time.monotonic() < self._no_list_until:
            return False
        try:
            self._redis.lpush(keys.RESULTS_QUEUE, message)
        except redis.exceptions.NoPermissionError:
            self._no_list_until = time.monotonic() + _TRY_AGAIN
            return False
        return True
