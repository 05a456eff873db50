"""`events.yaml`: the events, newest last. Repetitions are counted."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import dsf.log
from dsf.api import kubeyaml
from dsf.api.meta import rfc3339
from dsf.backends.files import read_yaml, write_text
from dsf.backends.protocol import EventType, ObjectKey
from dsf.errors import BackendError

log = dsf.log.get(__name__)

#: Most kept events.
LIMIT: Final = 200


class EventLog:
    """The events in one file. Thread-safe; never raises."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        #: Each event as it stands in the file: to write all of them anew at each event took most of a hub's time.
        self._texts: list[str] = []

    def load(self) -> None:
        """Load the events of an earlier hub."""
        try:
            events = read_yaml(self._path)
        except BackendError as error:
            log.warning("events cannot be read", error=str(error))
            return
        if isinstance(events, list):
            self._events = [event for event in events if isinstance(event, dict)][-LIMIT:]
            self._texts = [kubeyaml.dump([event]) for event in self._events]

    def add(self, about: ObjectKey, type_: EventType, reason: str, message: str) -> None:
        """Add an event about an object."""
        self.note({"kind": about.kind.value, "namespace": about.namespace, "name": about.name}, type_, reason, message)

    def note(self, regarding: dict[str, str], type_: EventType, reason: str, message: str) -> None:
        """Add an event; a repeated one moves to the end and its count increases."""
        now = rfc3339(datetime.now(UTC))
        what = {"type": type_, "reason": reason, "regarding": regarding, "message": message}
        with self._lock:
            # Messages first: most events differ in these already.
            alike = ((n, event) for n, event in enumerate(self._events) if event.get("message") == message)
            number = next((n for n, event in alike if what.items() <= event.items()), None)
            same: dict[str, Any] = {"first": now, "last": now, "count": 0, **what}
            if number is not None:
                same = self._events.pop(number)
                del self._texts[number]
            count = same["count"] if isinstance(same.get("count"), int) else 0
            event = {**same, "last": now, "count": count + 1}
            self._events = [*self._events, event][-LIMIT:]
            self._texts = [*self._texts, kubeyaml.dump([event])][-LIMIT:]
            try:
                write_text(self._path, "".join(self._texts))
            except BackendError as error:
                log.warning("event cannot be written", error=str(error), reason=reason, message=message)
