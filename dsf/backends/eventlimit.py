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


class _Told(NamedTuple):
    """The last event that was told about an object, when (monotonic), and how many more could follow at once."""

    event: tuple[str, ...]
    at: float
    left: float


class EventLimit:
    """Decides which events are told; the log has the others. Thread-safe."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}
        self._lock = threading.Lock()

    def allows(self, about: str, type_: EventType, reason: str, message: str) -> bool:
        """Whether an event about this object, named by any unique text, may be told now."""
        now = time.monotonic()
        event = (type_, reason, message)
        with self._lock:
            before = self._told.get(about, _Told((), now, BURST))
            left = min(BURST, before.left + (now - before.at) / PAUSE)
            if left >= 1 and (event != before.event or now - before.at >= PAUSE):
                self._told[about] = _Told(event, now, left - 1)
                while len(self._told) > _OBJECTS:
                    del self._told[next(iter(self._told))]
                return True
        log.info("an event is told here only", about=about, reason=reason, message=message)
        return False
