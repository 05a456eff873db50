"""Problems of objects: unmet conditions of scorers, and problems of the manifests of a hub on a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from dsf.fleet import views
from dsf.fleet.views import View
from dsf.store.notices import ConditionNotice

#: Maximum size of a file of the hub. Larger files are ignored.
_MAX_FILE_BYTES: Final = 10 * 1024 * 1024


class UnmetCondition(View):
    """A condition of a DynamicScorer that is not met."""

    scorer: str
    type: str
    status: str
    reason: str
    message: str


class StatusProblem(View):
    """A problem of a manifest, or if `file` is empty, of an agent, a cluster or the fleet."""

    file: str = ""
    line: int = 0
    field: str = ""
    message: str
    #: `error` or `note`. A manifest with an error is ignored; one with a note is used.
    severity: str = "error"

    @property
    def location(self) -> str:
        """`file:line: field`, without unknown parts."""
        parts = [f"{self.file}:{self.line}" if self.file and self.line else self.file, self.field]
        return ": ".join(part for part in parts if part)


def list_unmet_conditions(
    scorer: str, conditions: Iterable[ConditionNotice | views.ConditionView]
) -> Iterator[UnmetCondition]:
    """Yield a scorer's conditions that are False, except Scoring and Ready."""
    for condition in conditions:
        # Omit Scoring, because Redis has newer and better data about cycles, and Ready, because it summarizes the other
        # conditions.
        if condition.status == "False" and condition.type not in ("Scoring", "Ready"):
            yield UnmetCondition(scorer=scorer, **condition.model_dump(include={"type", "status", "reason", "message"}))


def read_folder_problems(out: Path | None) -> Iterator[StatusProblem]:
    """Yield the problems that a hub on a folder has found in the manifests; none if they cannot be read.

    `out` is the hub's output folder, or None.
    """
    problems = _load(out / "problems.yaml") if out else None
    for problem in problems if isinstance(problems, list) else ():
        with suppress(ValidationError):
            yield StatusProblem.model_validate(problem)


def _load(file: Path) -> Any:
    """Return the content of a YAML file; None if it is missing or unreadable, so that other data is still displayed."""
    # Import the module late, because the import takes a twentieth of a command's startup.
    import yaml

    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            return None
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
