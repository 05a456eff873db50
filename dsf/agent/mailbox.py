"""The agent's mailbox on the hub: a few slots of one result each, emptied by the hub.

It is all that an agent may write. A result that the hub has not taken when its scorer has a newer one gives its slot to
that one: while the hub is behind, what waits is the newest of each scorer and nothing else. When every slot is taken
the agent keeps what it has. A hub of the last release has no mailboxes; its agents push into a list.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import Final

import redis

import dsf.log
from dsf import keys
from dsf.agent.line import Line

log = dsf.log.get(__name__)

#: Seconds before a forbidden way of sending is tried again: the hub may be upgraded or rolled back.
_TRY_AGAIN: Final = 60.0


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
        # Whether a collector listened the last time. If not, there may never be one: then no slot's content is
        # replaced.
        self._is_heard = True
        # Until when (time.monotonic()) mailbox and list are considered missing.
        self._no_mailbox_until = 0.0
        self._no_list_until = 0.0

    def put(self, letter: Letter) -> tuple[bool, tuple[str, ...]]:
        """Put a letter in; returns whether it is in, and the runs (`<scorer>/<run id>`) that it displaced.

        It is not in if every slot is taken. One round trip, unless the hub is behind. Raises redis.RedisError if Redis
        is unreachable, full, or allows this agent neither way.
        """
        if time.monotonic() < self._no_mailbox_until and self._push(letter.message):
            return True, ()
        try:
            is_in, hears, lost = self._put(letter)
        except redis.exceptions.NoPermissionError:
            if not self._push(letter.message):
                raise
            self._no_mailbox_until = time.monotonic() + _TRY_AGAIN
            return True, ()
        if is_in:
            return True, lost
        # No collector listens: the results workers are down, or an old hub lets every agent write everywhere.
        return (not hears and self._push(letter.message)), ()

    def _put(self, letter: Letter) -> tuple[bool, bool, tuple[str, ...]]:
        """Whether it is in, whether the hub listens, and the displaced runs."""
        with self._lock:
            own = self._own_slot(letter)
            first = self._next
            if own is not None:
                self._in_flight.add(own)
                before = self._held[own]
            else:
                self._next = (first + 1) % keys.MAIL_SLOTS
        if own is not None:
            return self._replace(own, before, letter)
        is_put, hears = self._try(first, letter)
        if is_put:
            return True, bool(hears), ()
        taken = self.line.ask([("EXISTS", slot) for slot in self._slots])
        for step in range(1, keys.MAIL_SLOTS):
            number = (first + step) % keys.MAIL_SLOTS
            if not taken[number]:
                # Another thread may have been faster.
                is_put, heard = self._try(number, letter)
                hears = heard if heard is not None else hears
                if is_put:
                    return True, bool(hears), ()
        # Nothing tried: other threads are writing to all slots, so a mailbox exists.
        return False, hears is not False, ()

    def _own_slot(self, letter: Letter) -> int | None:
        """The slot of its scorer's last result, if this one may replace it. The lock is held."""
        if not self._is_heard:
            return None
        for number, held in self._held.items():
            if held.scorer == letter.scorer:
                if number in self._in_flight:
                    return None
                # A score is worth more than a newer reason for having none.
                return number if held.run < letter.run and (letter.is_score or not held.is_score) else None
        return None

    def _replace(self, number: int, before: Letter, letter: Letter) -> tuple[bool, bool, tuple[str, ...]]:
        """Write it to this slot, which is in flight, replacing any content."""
        slot = self._slots[number]
        try:
            was_there, _, heard = self.line.ask(
                [("EXISTS", slot), ("SET", slot, letter.message), ("PUBLISH", self._bell, number)]
            )
            with self._lock:
                self._held[number] = replace(letter, message=b"")
        finally:
            self._in_flight.discard(number)
        self._is_heard = heard > 0
        lost = (*before.superseded, f"{before.scorer}/{before.run}") if was_there else ()
        return True, heard > 0, lost

    def _try(self, number: int, letter: Letter) -> tuple[bool, bool | None]:
        """Write it to this slot if empty; whether it is in, and whether the hub listens, None if not tried."""
        with self._lock:
            if number in self._in_flight:
                return False, None
            self._in_flight.add(number)
        try:
            is_put, heard = self.line.ask(
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
        self._is_heard = heard > 0
        return bool(is_put), heard > 0

    def _push(self, message: bytes) -> bool:
        """Push as the last release did; False if forbidden."""
        if time.monotonic() < self._no_list_until:
            return False
        try:
            self.line.ask([("LPUSH", keys.RESULTS_QUEUE, message)])
        except redis.exceptions.NoPermissionError:
            self._no_list_until = time.monotonic() + _TRY_AGAIN
            return False
        return True
