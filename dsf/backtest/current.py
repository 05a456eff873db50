"""The scores of now as a side of a comparison."""

from __future__ import annotations

from dataclasses import dataclass, field

import redis

from dsf.api.aggregate import aggregated
from dsf.api.score import build_items
from dsf.backtest.record import Question, Record
from dsf.fleet.reader import FleetReader
from dsf.fleet.views import ScoreView
from dsf.store.registry import Registry, ScorerRecord


@dataclass
class CurrentScores:
    """The newest score of one scorer on each cluster, at one moment: now."""

    name: str
    at: int
    questions: dict[str, Question] = field(default_factory=dict)
    _records: dict[str, Record] = field(default_factory=dict)

    def times(self, cluster: str) -> list[int]:
        """The one moment."""
        return [self.at] if cluster in self._records else []

    def get(self, cluster: str, at: int) -> Record | None:
        """The score on a cluster."""
        return self._records.get(cluster) if at == self.at else None


def current(client: redis.Redis, scorer: str, at: int) -> CurrentScores:
    """Read the scores of a scorer. Raises UnknownScorerError, redis.RedisError."""
    scores = FleetReader(client).scores(None, scorer).scores
    record = Registry(client).scorers()[scorer]
    side = CurrentScores(scorer, at)
    for score in scores:
        side.questions[score.cluster] = Question(
            cluster=score.cluster,
            scorer=scorer,
            score_name=score.score_name,
            every=0,
            # The rows have no expired score, so those that they have count.
            validity=1,
            sources=(),
            scoring_endpoint="",
            formats=(),
        )
        items = {item.name: item.value for item in score.items} or _unpublished(score, record)
        if items:
            side._records[score.cluster] = Record(cluster=score.cluster, at=at, outcome="ok", items=items)
    return side


def _unpublished(score: ScoreView, record: ScorerRecord) -> dict[str, int]:
    """The items that `scoreDestination: None` leaves out. Raises ScoreObjectTooLargeError."""
    results = [(result.metric, result.score) for result in score.results]
    if record.aggregate_with:
        results = list(aggregated(results, record.aggregate_by, record.aggregate_with))
    more = record.more_dimension_formats
    return dict(build_items(results, record.dimension_format, score.cluster, record.score_name, more=more).items)
