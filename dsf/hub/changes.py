"""What people did to a DynamicScorer becomes a Kubernetes Event on it: those who act have no rights for that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

import redis

from dsf import keys
from dsf.backends.protocol import Backend, ObjectKey
from dsf.fleet.changes import Action, Change, after
from dsf.store.client import at_once

#: The reason of each Event. What concerns no DynamicScorer becomes none.
REASONS: Final = {
    Action.RESCORE: "Rescored",
    Action.PAUSE: "Paused",
    Action.RESUME: "Resumed",
    Action.INTERVAL: "IntervalChanged",
    Action.RESET: "ChangesReset",
}
#: Seconds after which a deed is no news any more; Kubernetes keeps an Event for an hour.
_OLD: Final = 3600.0


class ChangeTeller:
    """Thread-safe. Each deed is told once, also of the time in which no hub ran; twice, or never, after a crash."""

    def __init__(
        self, client: redis.Redis, backend: Backend, scorers_called: Callable[[str], Iterable[ObjectKey]]
    ) -> None:
        """`scorers_called` finds the DynamicScorers of a name."""
        self._redis = client
        self._backend = backend
        self._scorers_called = scorers_called
        self._lock = threading.Lock()

    def tell(self) -> None:
        """Make Events of what is new. Raises redis.RedisError."""
        with self._lock:
            oldest = f"{int((time.time() - _OLD) * 1000)}-0"
            told = self._redis.get(keys.CHANGES_TOLD)
            last = oldest if told is None else max(str(told), oldest, key=_moment)
            while batch := after(self._redis, last):
                for _, change in batch:
                    if change is not None:
                        self._tell(change)
                last = batch[-1][0]
                at_once(self._redis, ("SET", keys.CHANGES_TOLD, last))

    def _tell(self, change: Change) -> None:
        reason = REASONS.get(change.action)
        for key in self._scorers_called(change.scorer) if reason else ():
            self._backend.event(key, "Normal", reason or "", change.sentence)


def _moment(id_: str) -> tuple[int, int]:
    """Of a stream's id: milliseconds, and which one of that millisecond."""
    milliseconds, _, number = id_.partition("-")
    return int(milliseconds), int(number or 0)
