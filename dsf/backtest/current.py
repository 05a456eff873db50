"""The scores of now as a side of a comparison."""

from __future__ import annotations

import redis

from dsf.api.aggregate import aggregated
from dsf.api.score import build_items
from dsf.backtest.record import Question, Record
from dsf.backtest.recording import Recording
from dsf.fleet.model import FleetModel
from dsf.fleet.views import ScoreView
from dsf.store.registry import Registry, ScorerRecord


def add_current(recording: Recording, client: redis.Redis, scorer: str, at: int) -> None:
    """Add the newest score of a scorer on each cluster, as of the moment `at`.

    Raises UnknownScorerError, redis.RedisError.
    """
    scores = FleetModel(client).scores(None, scorer).scores
    record = Registry(client).scorers()[scorer]
    for score in scores:
        recording.begin(
            Question(
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
        )
        items = {item.name: item.value for item in score.items} or _unpublished(score, record)
        if items:
            recording.add(Record(cluster=score.cluster, at=at, outcome="ok", items=items))


def _unpublished(score: ScoreView, record: ScorerRecord) -> dict[str, int]:
    """The items that `scoreDestination: None` leaves out. Raises ScoreObjectTooLargeError."""
    results = [(result.metric, result.score) for result in score.results]
    if record.aggregate_with:
        results = list(aggregated(results, record.aggregate_by, record.aggregate_with))
    more = record.more_dimension_formats
    return dict(build_items(results, record.dimension_format, score.cluster, record.score_name, more=more).items)
