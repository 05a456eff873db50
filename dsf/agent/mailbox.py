"""The agent's mailbox on the hub: a few slots of one result each, emptied by the hub.

It is all that an agent may write. A result that the hub has not taken when its scorer has a newer one gives its slot to
that one: while the hub is behind, what waits is the newest of each scorer and nothing else. When every slot is taken
the agent keeps what it has.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import redis

from dsf import keys
from dsf.agent.line import Line


@dataclass(frozen=True)
class Letter:
    """A message for the hub, and the result in it."""

    scorer: str
    run: str
    #: Whether it has a score, not only a reason for having none.
    is_score: bool
    message: bytes
    #: Runs (`<scorer>/<run id>`) that it reports as superseded.
    superseded: tuple[str, ...] = ()


class Mailbox:
    """Writes messages into the mailbox. Thread-safe."""

    def __init__(self, client: redis.Redis, cluster: str) -> None:
        #: The connection that is shared with whatever else this agent asks of Redis.
        self.line = Line(client)
        self._slots = keys.mail_slots(cluster)
        self._bell = keys.mail_bell(cluster)
        self._lock = threading.Lock()
        self._next = 0
        # The last letter of each slot, without its message; only this agent writes there.
        self._held: dict[int, Letter] = {}
        # Slots being written by a thread: their content is unknown until the answer.
        self._in_flight: set[int] = set()

    def put(self, letter: Letter) -> tuple[bool, tuple[str, ...]]:
        """Put a letter in; returns whether it is in, and the runs (`<scorer>/<run id>`) that it displaced.

        It is not in if every slot is taken. One round trip, unless the hub is behind. Raises redis.RedisError if Redis
        is unreachable, full, or does not allow it.
        """
        with self._lock:
            own = self._own_slot(letter)
            first = self._next
            if own is not None:
                self._in_flight.add(own)
                before = self._held[own]
            else:
                self._next = (first + 1) % keys.MAIL_SLOTS
        if own is not None:
            return True, self._replace(own, before, letter)
        if self._try(first, letter):
            return True, ()
        taken = self.line.ask([("EXISTS", slot) for slot in self._slots])
        others = ((first + step) % keys.MAIL_SLOTS for step in range(1, keys.MAIL_SLOTS))
        # Another thread may be faster.
        return any(not taken[number] and self._try(number, letter) for number in others), ()

    def _own_slot(self, letter: Letter) -> int | None:
        """The slot of its scorer's last result, if this one may replace it. The lock is held."""
        for number, held in self._held.items():
            if held.scorer == letter.scorer:
                if number in self._in_flight:
                    return None
                # A score is worth more than a newer reason for having none.
                return number if held.run < letter.run and (letter.is_score or not held.is_score) else None
        return None

    def _replace(self, number: int, before: Letter, letter: Letter) -> tuple[str, ...]:
        """Write it to this slot, which is in flight, replacing any content; returns the displaced runs."""
        slot = self._slots[number]
        try:
            was_there, _, _ = self.line.ask(
                [("EXISTS", slot), ("SET", slot, letter.message), ("PUBLISH", self._bell, number)]
            )
            with self._lock:
                self._held[number] = replace(letter, message=b"")
        finally:
            self._in_flight.discard(number)
        return (*before.superseded, f"{before.scorer}/{before.run}") if was_there else ()

    def _try(self, number: int, letter: Letter) -> bool:
        """Write it to this slot if that is empty; returns whether it is in."""
        with self._lock:
            if number in self._in_flight:
                return False
            self._in_flight.add(number)
        try:
            is_put, _ = self.line.ask(
                # The bell also when it is taken: the hub may not have heard the last one.
                [("SET", self._slots[number], letter.message, "NX"), ("PUBLISH", self._bell, number)]
            )
            if is_put:
                with self._lock:
                    for other in [one for one, held in self._held.items() if held.scorer == letter.scorer]:
                        del self._held[other]
                    self._held[number] = replace(letter, message=b"")
        finally:
            self._in_flight.discard(number)
        return bool(is_put)
