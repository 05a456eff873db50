"""Report of a conformance check. A check consists of items, such as `health`, with one outcome each."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from pydantic import Field

from dsf.fleet.views import View


class Outcome(StrEnum):
    """Outcome of an item. The scoring API is not conformant only if an item has the outcome `fail`."""

    PASS = "pass"  # noqa: S105
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


class Finding(View):
    """The outcome of one item of the check."""

    point: str = Field(description="Name of the item, such as `health`, for --skip.")
    outcome: Outcome
    message: str = Field(description="Observation, or reason for skipping the item.")
    mend: str = Field(default="", description="Remedy.")
    seconds: float = Field(default=0.0, description="Duration of the item.")


class ConformanceReport(View):
    """The outcomes of all items of the check of one scoring API."""

    url: str = Field(description="The configURL.")
    scoring_url: str = Field(default="", description="Scoring URL.")
    conformant: bool = Field(description="Whether no item failed.")
    counts: dict[str, int] = Field(description="Number of items by outcome.")
    points: list[Finding]

    @classmethod
    def of(cls, url: str, scoring_url: str, points: list[Finding]) -> ConformanceReport:
        """Return the report of these findings, with their counts by outcome."""
        outcome_counts = Counter(point.outcome for point in points)
        counts = {outcome.value: outcome_counts[outcome] for outcome in Outcome}
        return cls(
            url=url, scoring_url=scoring_url, conformant=not outcome_counts[Outcome.FAIL], counts=counts, points=points
        )


class CheckEnded(Exception):  # noqa: N818  (it ends a point; it is no error)
    """Raised by a check to end it with another outcome than `pass`."""

    def __init__(self, outcome: Outcome, message: str, mend: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.mend = mend


def fail(message: str, mend: str) -> CheckEnded:
    """Return the error that ends an item as failed."""
    return CheckEnded(Outcome.FAIL, message, mend)


def warn(message: str, mend: str) -> CheckEnded:
    """Return the error that ends an item as passed, with advice."""
    return CheckEnded(Outcome.WARN, message, mend)


def skip(message: str) -> CheckEnded:
    """Return the error that ends an item that cannot be judged."""
    return CheckEnded(Outcome.SKIPPED, message)
