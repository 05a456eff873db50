"""Limit on the events about an object, so that changing messages flood neither the API server nor a reader."""

from __future__ import annotations

import threading
import time
from typing import Final, NamedTuple

import dsf.log
from dsf.backends.protocol import EventType

log = dsf.log.get(__name__)

#: Maximum number of events about an object that are published in immediate succession.
MAX_BURST: Final = 25
#: Seconds after which one more event about an object may be published. Two equal events in succession are at least this
#: far apart.
SECONDS_PER_EVENT: Final = 300.0
#: Maximum number of recorded objects.
_MAX_OBJECTS: Final = 10_000


class _LastEvent(NamedTuple):
    """The last published event about an object, its monotonic time, and the number of events that could follow then."""

    event: tuple[str, ...]
    published_at: float
    remaining_events: float


class EventLimit:
    """A token bucket for each object, which decides whether an event is published. Other events are logged.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._last_events: dict[str, _LastEvent] = {}
        self._lock = threading.Lock()

    def try_acquire(self, object_id: str, type_: EventType, reason: str, message: str) -> bool:
        """True if an event about this object, named by any unique text, may be published now."""
        now = time.monotonic()
        event = (type_, reason, message)
        with self._lock:
            last_event = self._last_events.get(object_id, _LastEvent((), now, MAX_BURST))
            seconds = now - last_event.published_at
            remaining_events = min(MAX_BURST, last_event.remaining_events + seconds / SECONDS_PER_EVENT)
            if remaining_events >= 1 and (event != last_event.event or seconds >= SECONDS_PER_EVENT):
                self._last_events[object_id] = _LastEvent(event, now, remaining_events - 1)
                # Forget the objects that were recorded first.
                while len(self._last_events) > _MAX_OBJECTS:
                    del self._last_events[next(iter(self._last_events))]
                return True
        log.info("an event is only logged", about=object_id, reason=reason, message=message)
        return False
