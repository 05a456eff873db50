"""Limit on the events about an object, so that changing messages flood neither the API server nor a reader."""

from __future__ import annotations

import threading
import time
from typing import Final, NamedTuple

import dsf.log
from dsf.backends.protocol import EventType

log = dsf.log.get(__name__)

#: Number of events about an object that are published immediately; later events are published every `PAUSE` seconds.
#: Consecutive equal events are published once per `PAUSE`.
BURST: Final = 25
PAUSE: Final = 300.0
#: Maximum number of recorded objects.
_MAX_OBJECTS: Final = 10_000


class _LastEvent(NamedTuple):
    """The last published event about an object, its monotonic time, and the number of events that may follow now."""

    event: tuple[str, ...]
    published_at: float
    remaining: float


class EventLimit:
    """Limiter that decides which events are published; the other events are logged. Thread-safe."""

    def __init__(self) -> None:
        self._last_events: dict[str, _LastEvent] = {}
        self._lock = threading.Lock()

    def allows(self, about: str, type_: EventType, reason: str, message: str) -> bool:
        """True if an event about this object, named by any unique text, may be published now."""
        now = time.monotonic()
        event = (type_, reason, message)
        with self._lock:
            before = self._last_events.get(about, _LastEvent((), now, BURST))
            remaining_events = min(BURST, before.remaining + (now - before.published_at) / PAUSE)
            if remaining_events >= 1 and (event != before.event or now - before.published_at >= PAUSE):
                self._last_events[about] = _LastEvent(event, now, remaining_events - 1)
                while len(self._last_events) > _MAX_OBJECTS:
                    del self._last_events[next(iter(self._last_events))]
                return True
        log.info("an event is told here only", about=about, reason=reason, message=message)
        return False
