"""Obstacles of objects: unmet conditions of scorers, and mistakes in the manifests of a hub on a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dsf.fleet import views
from dsf.fleet.views import View
from dsf.store.notices import ConditionNotice


class UnmetCondition(View):
    """A condition of a DynamicScorer that is not met."""

    scorer: str
    type: str
    status: str
    reason: str
    message: str


class ManifestMistake(View):
    """A mistake in a manifest."""

    file: str = ""
    line: int = 0
    field: str = ""
    message: str
    #: error: the document is not used; note: worth knowing.
    severity: str = "error"

    @property
    def place(self) -> str:
        """`file:line: field`, as far as known."""
        parts = [f"{self.file}:{self.line}" if self.file and self.line else self.file, self.field]
        return ": ".join(part for part in parts if part)


def unmet(scorer: str, conditions: Iterable[ConditionNotice | views.ConditionView]) -> Iterator[UnmetCondition]:
    """A scorer's conditions that are False, except those about its cycles, and their sum."""
    for condition in conditions:
        # Redis has newer and better data of cycles (Scoring); Ready sums up conditions that are there.
        if condition.status == "False" and condition.type not in ("Scoring", "Ready"):
            yield UnmetCondition(scorer=scorer, **condition.model_dump(include={"type", "status", "reason", "message"}))


def problems_in(out: Path | None) -> Iterator[ManifestMistake]:
    """The hub's problems with the manifests."""
    problems = _load(out / "problems.yaml") if out else None
    for problem in problems if isinstance(problems, list) else ():
        with suppress(ValidationError):
            yield ManifestMistake.model_validate(problem)


def _load(file: Path) -> Any:
    """Return a YAML file of the hub; None if missing or unreadable, as other data can still be shown."""
    # Imported only with a hub on a folder: it takes a twentieth of a command's startup.
    import yaml

    try:
        if file.stat().st_size > 10 * 1024 * 1024:
            return None
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
