"""The limit on events about one object: ever-changing messages must flood neither the API server nor a reader."""

from __future__ import annotations

import threading
import time
from typing import Final, NamedTuple

import dsf.log
from dsf.backends.protocol import EventType

log = dsf.log.get(__name__)

#: Events about one object at once; then one in `PAUSE` seconds. An equal one after the other is told once in that time.
BURST: Final = 25
PAUSE: Final = 300.0
#: Most objects that are remembered.
_OBJECTS: Final = 10_000


class _LastEvent(NamedTuple):
    """The last event that was published about an object, its time (monotonic), and how many more may follow at once."""

    event: tuple[str, ...]
    at: float
    remaining: float


class EventLimit:
    """Decides which events are published; the log has the others. Thread-safe."""

    def __init__(self) -> None:
        self._last_events: dict[str, _LastEvent] = {}
        self._lock = threading.Lock()

    def allows(self, about: str, type_: EventType, reason: str, message: str) -> bool:
        """True if an event about this object, named by any unique text, may be published now."""
        now = time.monotonic()
        event = (type_, reason, message)
        with self._lock:
            before = self._last_events.get(about, _LastEvent((), now, BURST))
            remaining_events = min(BURST, before.remaining + (now - before.at) / PAUSE)
            if remaining_events >= 1 and (event != before.event or now - before.at >= PAUSE):
                self._last_events[about] = _LastEvent(event, now, remaining_events - 1)
                while len(self._last_events) > _OBJECTS:
                    del self._last_events[next(iter(self._last_events))]
                return True
        log.info("an event is told here only", about=about, reason=reason, message=message)
        return False
