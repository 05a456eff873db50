"""What `dsf status` finds out: from Redis, and in a hub on a folder also from what the hub wrote there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import redis
import yaml
from pydantic import Field

from dsf.cli.session import out_dir
from dsf.errors import UnknownScorerError
from dsf.exporter.reader import FleetReader
from dsf.exporter.views import ScorerView, ScoreView, Time, View
from dsf.settings import Settings
from dsf.store.agents import Agents

#: Bytes of a file of the hub's that are read at most.
_MAX_FILE = 10 * 1024 * 1024


class ConditionView(View):
    """A condition of a DynamicScorer that is not met."""

    scorer: str
    type: str
    status: str
    reason: str
    message: str


class ProblemView(View):
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


class StatusReport(View):
    """Everything that `dsf status` shows."""

    at: Time
    ok: bool
    scorers: list[ScorerView]
    #: The clusters of the scorer that was named; None when none was.
    scores: list[ScoreView] | None = None
    conditions: list[ConditionView] = Field(default_factory=list)
    problems: list[ProblemView] = Field(default_factory=list)


def read_report(client: redis.Redis, settings: Settings, named: str | None) -> StatusReport:
    """How all scorers do, or one.

    Raises UnknownScorerError for a name that is neither registered nor in the hub's folder, and redis.RedisError.
    """
    fleet = FleetReader(client)
    out = out_dir(settings)
    conditions = [one for one in _conditions(out) if named in (None, one.scorer)]
    problems: list[ProblemView] = []
    scores: list[ScoreView] | None = None
    if named is None:
        found = fleet.scorers()
        problems = list(_problems(out))
    else:
        try:
            found = fleet.scorers(named)
            scores = [score.model_copy(update={"results": []}) for score in fleet.scores(scorer=named).scores]
        except UnknownScorerError:
            if not conditions:
                raise
            # It is known, but not good enough to run: the conditions say why.
            found = fleet.scorers().model_copy(update={"scorers": []})
    problems += [ProblemView(message=f"cluster {name}: {text}") for name, text in Agents(client).problems().items()]
    wrong = any(problem.severity == "error" for problem in problems)
    bad = wrong or conditions or any(state_of(scorer) in _BAD for scorer in found.scorers)
    return StatusReport(
        at=found.at, ok=not bad, scorers=found.scorers, scores=scores, conditions=conditions, problems=problems
    )


_BAD = ("unhealthy", "failing", "expired")


def state_of(scorer: ScorerView) -> str:
    """One word: unhealthy, failing, expired, suspended, waiting or ok; the first that is true.

    Why it is expired or waiting, when that is because ticks are not sent, is in `scorer.idle`.
    """
    counts = scorer.clusters
    if scorer.health_status == "Inactive":
        return "unhealthy"
    if counts.failing:
        return "failing"
    if scorer.suspended:
        return "suspended"
    if counts.expired:
        return "expired"
    return "waiting" if counts.waiting or not counts.desired else "ok"


def _conditions(out: Path | None) -> Iterator[ConditionView]:
    """Conditions that are False, of every scorer in the hub's folder."""
    for file in sorted((out / "dynamicscorers").glob("*.yaml")) if out else ():
        document = _load(file)
        if not isinstance(document, dict):
            continue
        status = document.get("status")
        listed = status.get("conditions") if isinstance(status, dict) else None
        for condition in _dicts(listed):
            # How cycles go is known better, and newer, from Redis.
            if condition.get("status") == "False" and condition.get("type") != "Scoring":
                words = {name: str(condition.get(name, "")) for name in ("type", "status", "reason", "message")}
                yield ConditionView(scorer=file.stem, **words)


def _problems(out: Path | None) -> Iterator[ProblemView]:
    listed = _load(out / "problems.yaml") if out else None
    for problem in _dicts(listed.get("problems") if isinstance(listed, dict) else listed):
        line = problem.get("line")
        yield ProblemView(
            file=str(problem.get("file") or ""),
            line=line if isinstance(line, int) else 0,
            field=str(problem.get("field") or ""),
            message=str(problem.get("message") or ""),
            severity=str(problem.get("severity") or "error"),
        )


def _dicts(value: Any) -> Iterable[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _load(file: Path) -> Any:
    """A YAML file of the hub's; None when it is not there or cannot be read, which is no reason to show nothing."""
    try:
        if file.stat().st_size > _MAX_FILE:
            return None
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
