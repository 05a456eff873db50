"""Ticks of the last seconds before Redis was lost, sent once more when it is back.

Redis pops a tick for an agent and ends before the answer is sent: that tick is gone, although every write is on disk.
Beat still has it. Agents drop a tick whose run they know.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import redis

import dsf.log
from dsf import keys
from dsf.store.client import batched, lua

log = dsf.log.get(__name__)

#: Seconds for which ticks are kept.
_KEPT: Final = 2.0
#: Rows per call of the script.
_MOST_TOGETHER: Final = 1000


class Tick(NamedTuple):
    """One sent tick."""

    queue: str
    run_member: str
    message: str


class Repeats:
    """Not thread-safe."""

    def __init__(self, client: redis.Redis, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._push = client.register_script(lua("repeat"))
        #: With the time of each batch.
        self._recent: deque[tuple[float, Sequence[Tick]]] = deque()
        self._doubtful: list[Tick] = []

    def note(self, ticks: Sequence[Tick]) -> None:
        """These are being sent now."""
        if ticks:
            self._recent.append((self._clock(), ticks))

    def cut_off(self) -> None:
        """Redis is lost, or was: what was sent last may not have arrived."""
        while self._recent:
            self._doubtful += self._recent.popleft()[1]

    def send(self) -> None:
        """Send the doubtful ticks again, if any. To be called before each batch: only then is time counted, for a
        Redis that is silent is noticed late.

        Raises redis.ConnectionError and redis.TimeoutError; they are then sent by the next call.
        """
        if not self._doubtful:
            oldest = self._clock() - _KEPT
            while self._recent and self._recent[0][0] < oldest:
                self._recent.popleft()
            return
        pushed = 0
        try:
            for rows in batched(self._doubtful, _MOST_TOGETHER):
                arguments = [part for row in rows for part in (row.run_member, row.message)]
                pushed += int(self._push(keys=[keys.OPEN_RUNS, *(row.queue for row in rows)], args=arguments))
        except redis.ResponseError as error:
            # No reason to stop beat. That is also what a command in a script raises for want of a right.
            log.warning(
                "ticks of the last moment are not sent again; if beat lacks a right, write the ACL file anew",
                error=str(error),
            )
        else:
            # Redis may end once more.
            self._recent.append((self._clock(), self._doubtful))
        if pushed:
            log.info("ticks that may not have arrived are sent again", ticks=pushed)
        self._doubtful = []
