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
    """The events in one file, which `write` brings up to date. Thread-safe; never raises."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self._is_written = True

    def load(self) -> None:
        """Load the events of an earlier hub."""
        try:
            events = read_yaml(self._path)
        except BackendError as error:
            log.warning("events cannot be read", error=str(error))
            return
        if isinstance(events, list):
            self._events = [event for event in events if isinstance(event, dict)][-LIMIT:]

    def add(self, about: ObjectKey, type_: EventType, reason: str, message: str) -> None:
        """Add an event about an object."""
        self.note({"kind": about.kind.value, "namespace": about.namespace, "name": about.name}, type_, reason, message)

    def note(self, regarding: dict[str, str], type_: EventType, reason: str, message: str) -> None:
        """Add an event; a repeated one moves to the end and its count increases."""
        now = rfc3339(datetime.now(UTC))
        what = {"type": type_, "reason": reason, "regarding": regarding, "message": message}
        with self._lock:
            event: dict[str, Any] = {"first": now, "last": now, "count": 0, **what}
            for number, old in enumerate(self._events):
                if what.items() <= old.items() and isinstance(old.get("count"), int):
                    event = self._events.pop(number)
                    break
            event |= {"last": now, "count": event["count"] + 1}
            self._events = [*self._events, event][-LIMIT:]
            self._is_written = False

    def write(self) -> None:
        """Write the file if there are new events; if that fails, the next call tries again."""
        with self._lock:
            if self._is_written:
                return
            self._is_written = True
            text = kubeyaml.dump(self._events)
        try:
            write_text(self._path, text)
        except BackendError as error:
            self._is_written = False
            log.warning("events cannot be written", error=str(error))


class ProblemReport:
    """`problems.yaml`, the current problems of the manifests: reported once, in log and events. Never raises."""

    def __init__(self, path: Path, events: EventLog) -> None:
        self._path = path
        self._events = events
        #: The current problems.
        self.problems: Sequence[ManifestProblem] = ()
        self._is_written = False

    def update(self, problems: Sequence[ManifestProblem]) -> None:
        """Set the current problems."""
        if self._is_written and self.problems == problems:
            return
        before, self.problems = self.problems, problems
        try:
            write_text(self._path, kubeyaml.dump([_row(problem) for problem in problems]))
            self._is_written = True
        except BackendError as error:
            self._is_written = False
            log.error("problems cannot be written down", error=str(error))
        for problem in problems:
            if problem not in before:
                self._report(problem)

    def _report(self, problem: ManifestProblem) -> None:
        # Line 0: the problem is the folder or the file itself.
        text = str(problem) if problem.line else f"{problem.source}: {problem.message}"
        is_error = problem.severity == "error"
        (log.warning if is_error else log.info)("manifest problem", problem=text)
        regarding = {"kind": "File", "namespace": "", "name": problem.source}
        self._events.note(regarding, "Warning" if is_error else "Normal", "ManifestProblem", text)


def _row(problem: ManifestProblem) -> dict[str, Any]:
    return {
        "file": problem.source,
        "line": problem.line,
        "field": problem.field,
        "message": problem.message,
        "severity": problem.severity,
    }
