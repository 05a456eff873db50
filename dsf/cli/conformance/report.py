"""What a check finds."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from pydantic import Field

from dsf.fleet.views import View


class Outcome(StrEnum):
    """How a point ends. Only `fail` makes the scoring API not conformant."""

    PASS = "pass"  # noqa: S105
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


class Finding(View):
    """One point."""

    point: str = Field(description="Name of the point, such as `health`; --skip takes it.")
    outcome: Outcome
    message: str = Field(description="What was seen, or why the point was skipped.")
    mend: str = Field(default="", description="What to do about it.")
    seconds: float = Field(default=0.0, description="How long the point took.")


class Report(View):
    """All points of one scoring API."""

    url: str = Field(description="The configURL.")
    scoring_url: str = Field(default="", description="Where scores were asked for.")
    conformant: bool = Field(description="Whether no point failed.")
    counts: dict[str, int] = Field(description="Points by outcome.")
    points: list[Finding]

    @classmethod
    def of(cls, url: str, scoring_url: str, points: list[Finding]) -> Report:
        """The report of these points."""
        seen = Counter(point.outcome for point in points)
        counts = {outcome.value: seen[outcome] for outcome in Outcome}
        return cls(url=url, scoring_url=scoring_url, conformant=not seen[Outcome.FAIL], counts=counts, points=points)


class Verdict(Exception):  # noqa: N818  (it ends a point; it is no error)
    """Ends a point with an outcome."""

    def __init__(self, outcome: Outcome, message: str, mend: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.mend = mend


def fail(message: str, mend: str) -> Verdict:
    """The point fails."""
    return Verdict(Outcome.FAIL, message, mend)


def warn(message: str, mend: str) -> Verdict:
    """The point passes, with an advice."""
    return Verdict(Outcome.WARN, message, mend)


def skip(message: str) -> Verdict:
    """The point cannot be judged."""
    return Verdict(Outcome.SKIPPED, message)
