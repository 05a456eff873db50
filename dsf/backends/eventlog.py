"""What the folder backend tells users: `events.yaml`, newest last, with counted repetitions, and `problems.yaml`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import dsf.log
from dsf.api import kubeyaml
from dsf.api.manifest import ManifestProblem
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


class ProblemReport:
    """`problems.yaml`, the current problems of the manifests: reported once, in log and events. Never raises."""

    def __init__(self, path: Path, events: EventLog) -> None:
        self._path = path
        self._events = events
        self._lock = threading.Lock()
        self._problems: list[ManifestProblem] | None = None
        #: Whether the file has the current problems.
        self.is_written = False

    @property
    def problems(self) -> list[ManifestProblem]:
        """The current problems."""
        with self._lock:
            return [*(self._problems or ())]

    def update(self, problems: Sequence[ManifestProblem]) -> None:
        """Set the current problems."""
        with self._lock:
            before = self._problems
            if self.is_written and before == [*problems]:
                return
            self._problems = [*problems]
        try:
            write_text(self._path, kubeyaml.dump([_row(problem) for problem in problems]))
            self.is_written = True
        except BackendError as error:
            self.is_written = False
            log.error("problems cannot be written down", error=str(error))
        for problem in problems:
            if problem not in (before or ()):
                self._say(problem)

    def _say(self, problem: ManifestProblem) -> None:
        is_error = problem.severity == "error"
        (log.warning if is_error else log.info)("manifest problem", problem=_words(problem))
        regarding = {"kind": "File", "namespace": "", "name": problem.source}
        self._events.note(regarding, "Warning" if is_error else "Normal", "ManifestProblem", _words(problem))


def _words(problem: ManifestProblem) -> str:
    # Line 0: the problem is the folder itself.
    return str(problem) if problem.line else f"{problem.source}: {problem.message}"


def _row(problem: ManifestProblem) -> dict[str, Any]:
    return {
        "file": problem.source,
        "line": problem.line,
        "field": problem.field,
        "message": problem.message,
        "severity": problem.severity,
    }
