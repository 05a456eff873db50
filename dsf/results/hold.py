"""`spec.execution.hold` between a result and its score: what is published now, and what of a new score is held back.

The state is part of the pair's newest score, so it ends with the pair and is any worker's. Only pairs whose scorer has
a hold are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import redis

from dsf import keys
from dsf.api.score import has_expired, to_score_value
from dsf.api.scorerule import Result as ItemResult
from dsf.api.scorerule import find_item_owners, hold_back
from dsf.messages import Result
from dsf.store.client import parsed
from dsf.store.pairs import PairScore, row_fields
from dsf.store.registry import ScorerRecord

_Results = list[tuple[dict[str, str], float]]


class Published:
    """The scores in force of the pairs of some results. For one batch of one worker: a mailbox has one reader."""

    def __init__(self, client: redis.Redis, results: Iterable[tuple[Result, ScorerRecord]], *, now: float) -> None:
        """Read the scores of scorers with a hold, in one round trip. `now` is unix seconds. Raises redis.RedisError."""
        self._scores: dict[tuple[str, str], PairScore] = {}
        scorers = {
            (result.cluster, result.scorer): scorer
            for result, scorer in results
            if scorer.hold is not None and scorer.is_published
        }
        if not scorers:
            return
        with client.pipeline(transaction=False) as pipe:
            pipe.hmget(keys.ROWS, [keys.pair(*pair) for pair in scorers])
            for pair in scorers:
                pipe.hget(keys.pair_key(*pair), "score")
            # A pair whose data is damaged must not stop the others: its score is published as it comes.
            rows, *texts = pipe.execute(raise_on_error=False)
        if isinstance(rows, Exception):
            raise rows
        for (pair, scorer), row, text in zip(scorers.items(), rows, texts, strict=True):
            score = parsed(PairScore, keys.pair(*pair), text if isinstance(text, str) else None)
            failing = row_fields(keys.pair(*pair), row).get("failing", 0)
            if score is not None and _is_in_force(score, scorer, failing, now):
                self._scores[pair] = score

    def before(self, result: Result) -> PairScore | None:
        """The score that this result may replace; None if there is none, or if it is not held against it."""
        score = self._scores.get((result.cluster, result.scorer))
        # A result replaces only an older score.
        return score if score is not None and score.run < result.run else None

    def replace(self, cluster: str, scorer: ScorerRecord, score: PairScore | None) -> None:
        """Make this score, of a new result, the baseline for the next result of the pair, if it is later."""
        if scorer.hold is None or score is None:
            return
        published_score = self._scores.get((cluster, scorer.name))
        if published_score is None or published_score.run < score.run:
            self._scores[cluster, scorer.name] = score


def held(measured: PairScore, published: PairScore, scorer: ScorerRecord, cluster: str) -> PairScore:
    """The score to publish instead of `measured`; the same object where the scorer has no hold."""
    if scorer.hold is None:
        return measured
    values, waiting = hold_back(
        dict(published.items),
        dict(measured.items),
        published.held,
        measured.at,
        min_change=scorer.hold.min_change,
        for_seconds=scorer.hold.for_seconds,
    )
    if not waiting:
        return measured
    results = measured.results
    if scorer.aggregate is None:
        # Metrics of an aggregated score show its parts, which are never held back.
        owners = find_item_owners(measured.results, scorer, cluster)
        held_values = {name: values[name] for name in waiting}
        results = _as_published(measured.results, published.results, held_values, owners)
    return measured.model_copy(update={"items": list(values.items()), "results": results, "held": waiting})


def _is_in_force(score: PairScore, scorer: ScorerRecord, failing: int, now: float) -> bool:
    """True if readers see this score: one that is out of date, or whose place whenFailing took, holds nothing back."""
    rule = scorer.when_failing
    return (
        score.score_name == scorer.score_name
        and not has_expired(score.valid_until, now)
        and (rule.behavior == "Keep" or failing < rule.failure_threshold)
    )


def _as_published(
    measured: _Results, published: _Results, held_values: Mapping[str, int], owners: Mapping[str, ItemResult]
) -> _Results:
    """Return the results with the score of the published one where their item is held, so that gauges agree with items.

    Labels of `measured` are distinct.
    """
    published_scores = {frozenset(labels.items()): score for labels, score in published}
    replaced: dict[frozenset[tuple[str, str]], float] = {}
    for name, value in held_values.items():
        if name not in owners:
            continue
        labels = frozenset(owners[name][0].items())
        score = published_scores.get(labels)
        is_same = score is not None and to_score_value(score)[0] == value
        replaced[labels] = score if score is not None and is_same else float(value)
    return [(labels, replaced.get(frozenset(labels.items()), score)) for labels, score in measured]
