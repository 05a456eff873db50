"""`problems.yaml`: current problems of the manifests."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dsf.log
from dsf.api import kubeyaml
from dsf.api.manifest import ManifestProblem
from dsf.backends.eventlog import EventLog
from dsf.backends.files import write_text
from dsf.errors import BackendError

log = dsf.log.get(__name__)


class ProblemReport:
    """Reports each problem once, in log and events, and keeps the current list. Never raises."""

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
