"""Applies `spec.execution.hold`: decides which items of a new score are published, and which are held back.

The items that are held back are stored in the pair's newest score. Any worker can therefore continue a hold, and a
deleted pair leaves no data behind. Only pairs whose scorer has a hold are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import redis

from dsf import keys
from dsf.api.score import has_expired, to_score_value
from dsf.api.scorerule import Result as ItemResult
from dsf.api.scorerule import find_item_owners, hold_back
from dsf.messages import Result
from dsf.store.client import parse_stored
from dsf.store.pairs import Pair, PairScore, parse_row_fields, parse_score_size
from dsf.store.registry import ScorerRecord

# (labels, score) of each result of the scoring API.
_Results = list[tuple[dict[str, str], float]]


def read_score_sizes(client: redis.Redis, results: Iterable[tuple[Result, ScorerRecord]]) -> dict[Pair, int]:
    """Return the bytes of the current scores of all pairs whose scorers have a hold. Raises redis.RedisError."""
    pairs = list(_select_scorers(results))
    with client.pipeline(transaction=False) as pipe:
        for pair in pairs:
            pipe.hget(keys.pair_key(*pair), "score_size")
        # Damaged data must not stop other pairs.
        sizes = pipe.execute(raise_on_error=False)
    return {
        pair: parse_score_size(size if isinstance(size, str) else None) for pair, size in zip(pairs, sizes, strict=True)
    }


def _select_scorers(results: Iterable[tuple[Result, ScorerRecord]]) -> dict[Pair, ScorerRecord]:
    """Return the scorers with a hold, by pair."""
    return {
        (result.cluster, result.scorer): scorer
        for result, scorer in results
        if scorer.hold is not None and scorer.is_published
    }


class PublishedScores:
    """The current scores of the pairs in a part of a batch of results.

    No other process changes them during the batch, because a mailbox has one reader at a time.
    """

    def __init__(
        self,
        client: redis.Redis,
        results: Iterable[tuple[Result, ScorerRecord]],
        *,
        now: float,
        replacements: dict[Pair, PairScore] | None = None,
    ) -> None:
        """Read the scores of scorers with a hold, in one round trip. Raises redis.RedisError.

        `now` is unix seconds. `replacements` are the newer scores of the batch, which `replace` adds.
        """
        self._replacements = {} if replacements is None else replacements
        self._scores: dict[Pair, PairScore] = {}
        scorers = _select_scorers(results)
        if not scorers:
            return
        with client.pipeline(transaction=False) as pipe:
            pipe.hmget(keys.ROWS, [keys.pair(*pair) for pair in scorers])
            for pair in scorers:
                pipe.hget(keys.pair_key(*pair), "score")
            # A pair with damaged data must not stop the others: its new score is published without a hold.
            rows, *score_texts = pipe.execute(raise_on_error=False)
        if isinstance(rows, Exception):
            raise rows
        for (pair, scorer), row, text in zip(scorers.items(), rows, score_texts, strict=True):
            score = parse_stored(PairScore, keys.pair(*pair), text if isinstance(text, str) else None)
            failing = parse_row_fields(keys.pair(*pair), row).get("failing", 0)
            if score is not None and _is_in_force(score, scorer, failing, now):
                self._scores[pair] = score

    def get_older_score(self, result: Result) -> PairScore | None:
        """Return the published score that this result may replace; None if the pair has none from an earlier run."""
        published_score = self._get_newest((result.cluster, result.scorer))
        return published_score if published_score is not None and published_score.run < result.run else None

    def replace(self, cluster: str, scorer: ScorerRecord, score: PairScore | None) -> None:
        """Make `score` the published score for the pair's next result in this batch, unless that is a later score."""
        if scorer.hold is None or score is None:
            return
        published_score = self._get_newest((cluster, scorer.name))
        if published_score is None or published_score.run < score.run:
            self._replacements[cluster, scorer.name] = score

    def _get_newest(self, pair: Pair) -> PairScore | None:
        return self._replacements.get(pair) or self._scores.get(pair)


def hold_items(measured_score: PairScore, published_score: PairScore, scorer: ScorerRecord, cluster: str) -> PairScore:
    """Return `measured_score` with the published values of all items that the hold keeps back."""
    if scorer.hold is None:
        return measured_score
    values, waiting_items = hold_back(
        dict(published_score.items),
        dict(measured_score.items),
        published_score.held,
        measured_score.at,
        min_change=scorer.hold.min_change,
        for_seconds=scorer.hold.for_seconds,
    )
    if not waiting_items:
        return measured_score
    results = measured_score.results
    if scorer.aggregate is None:
        # Metrics of an aggregated score show its parts, to which a hold does not apply.
        owners = find_item_owners(measured_score.results, scorer, cluster)
        held_values = {name: values[name] for name in waiting_items}
        results = _replace_held_scores(measured_score.results, published_score.results, held_values, owners)
    return measured_score.model_copy(update={"items": list(values.items()), "results": results, "held": waiting_items})


def _is_in_force(score: PairScore, scorer: ScorerRecord, failing: int, now: float) -> bool:
    """Return True if the score is still published: it has not expired, and whenFailing has not replaced it."""
    rule = scorer.when_failing
    return (
        score.score_name == scorer.score_name
        and not has_expired(score.valid_until, now)
        and (rule.behavior == "Keep" or failing < rule.failure_threshold)
    )


def _replace_held_scores(
    measured_results: _Results,
    published_results: _Results,
    held_values: Mapping[str, int],
    owners: Mapping[str, ItemResult],
) -> _Results:
    """Return the results with the published scores of held items, so that gauges agree with the items.

    `measured_results` has no duplicate labels.
    """
    published_scores = {frozenset(labels.items()): score for labels, score in published_results}
    replaced_scores: dict[frozenset[tuple[str, str]], float] = {}
    for name, value in held_values.items():
        if name not in owners:
            continue
        labels = frozenset(owners[name][0].items())
        score = published_scores.get(labels)
        is_published = score is not None and to_score_value(score)[0] == value
        replaced_scores[labels] = score if score is not None and is_published else float(value)
    return [(labels, replaced_scores.get(frozenset(labels.items()), score)) for labels, score in measured_results]
