"""One moment of a backtest, and the question that all moments of a file answer."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from dsf.api.naming import sanitize_resource_name
from dsf.api.summary import ScorerSummary

#: As of a cycle; see docs/scoring-api.md.
Outcome = Literal["ok", "empty", "partial", "error"]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SourceQuestion(_Line):
    """What one source is asked. Without its address: that of a port-forward is another one each day."""

    type: str
    query: str
    range: int
    step: int


class Question(_Line):
    """What a backtest asks of one cluster. Moments of different questions do not belong into one series."""

    cluster: str
    scorer: str
    score_name: str
    #: Seconds between two moments.
    every: int
    #: Seconds for which a score counts that is not followed by another one.
    validity: int
    sources: tuple[SourceQuestion, ...]
    scoring_endpoint: str
    formats: tuple[str, ...]
    aggregate: str = ""

    @classmethod
    def of(cls, cluster: str, summary: ScorerSummary, every: int) -> Self:
        """The question of a scorer on a cluster, each `every` seconds."""
        aggregate = f"{summary.aggregate_with} by {','.join(summary.aggregate_by or ())}"
        return cls(
            cluster=cluster,
            scorer=summary.name,
            score_name=summary.score_name,
            every=every,
            validity=summary.validity_seconds,
            sources=tuple(
                SourceQuestion(
                    type=source.source_type,
                    query=source.source_query,
                    range=source.source_range,
                    step=source.source_step,
                )
                for source in summary.each_source
            ),
            scoring_endpoint=summary.scoring_endpoint,
            formats=(summary.score_dimension_format, *(summary.more_dimension_formats or ())),
            aggregate=aggregate if summary.aggregate_with else "",
        )

    @property
    def resource(self) -> str:
        """Name of the AddOnPlacementScores."""
        return sanitize_resource_name(self.score_name)

    def differs(self, other: Question) -> list[str]:
        """Names of the fields in which both differ."""
        return [name for name in type(self).model_fields if getattr(self, name) != getattr(other, name)]


class Record(_Line):
    """What the scorer would have said at one moment."""

    cluster: str
    #: The end of the range query, in unix seconds.
    at: int
    outcome: Outcome
    #: As the AddOnPlacementScore would have them: rounded down, from -100 to 100.
    items: dict[str, int] = {}
    #: Time series of the source.
    series: int = 0
    #: Of an error.
    stage: str = ""
    reason: str = ""
    message: str = ""


class QuestionLine(_Line):
    """The line of a file before the moments of a cluster."""

    question: Question
