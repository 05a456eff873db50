"""The agent's mailbox on the hub: a few slots of one result each, emptied by the hub.

It is all that an agent may write. When all slots are taken, a scorer's newer score replaces what waits of that
scorer; without that the agent keeps what it has.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import redis

from dsf import keys


class Mail(NamedTuple):
    """What a slot holds, for its agent."""

    scorer: str
    run: str
    #: Whether it has a score, not only a reason for having none.
    is_score: bool


class Mailbox:
    """Writes results into the slots; only this process writes them. Thread-safe."""

    def __init__(self, client: redis.Redis, cluster: str) -> None:
        self._redis = client
        self._slots = keys.mail_slots(cluster)
        self._flag = keys.mail_flag(cluster)
        self._lock = threading.Lock()
        self._next = 0
        # The newest result of each slot, which the hub may have taken; slots that a thread is writing.
        self._written: dict[int, Mail] = {}
        self._busy: set[int] = set()

    def put(self, mail: Mail, text: bytes) -> bool:
        """Whether it is in. One round trip unless its slot is taken. Raises redis.RedisError."""
        with self._lock:
            first, self._next = self._next, (self._next + 1) % len(self._slots)
        if self._write(first, mail, text):
            return True
        for slot in self._free_slots():
            if self._write(slot, mail, text):
                return True
        # A reason for having no score waits: it is not worth another one.
        return mail.is_score and any(self._write(slot, mail, text, replace=True) for slot in self._replaceable(mail))

    def _free_slots(self) -> list[int]:
        with self._redis.pipeline(transaction=False) as pipe:
            for slot in self._slots:
                pipe.exists(slot)
            taken = pipe.execute()
        return [slot for slot, is_taken in enumerate(taken) if not is_taken]

    def _replaceable(self, mail: Mail) -> list[int]:
        """Slots with an older result of the same scorer."""
        with self._lock:
            return [slot for slot, old in self._written.items() if old.scorer == mail.scorer and old.run < mail.run]

    def _write(self, slot: int, mail: Mail, text: bytes, *, replace: bool = False) -> bool:
        """Whether it is in this slot now. Not if it is taken, or if another thread is writing it."""
        with self._lock:
            if slot in self._busy:
                return False
            self._busy.add(slot)
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.set(self._slots[slot], text, nx=not replace)
                # After the result: the hub clears the flag before it has read everything.
                pipe.set(self._flag, 1)
                is_in = bool(pipe.execute()[0])
            if is_in:
                self._written[slot] = mail
            return is_in
        finally:
            self._busy.discard(slot)
