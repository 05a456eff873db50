"""The inputs of a composite scorer on one cluster, as the hub knows them: their scores, or why these are missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import redis

from dsf.api.expressions import ScoreInput
from dsf.api.score import has_expired
from dsf.cycle.composite import NoResults, Result, describe_expiry
from dsf.fleet.views import InputView
from dsf.store.notices import Notices
from dsf.store.pairs import Pairs, PairState
from dsf.store.registry import Registry, ScorerRecord


def find_stored_results(
    client: redis.Redis, cluster: str, scorer: str, namespace: str, now: float
) -> Sequence[Result] | NoResults:
    """Return the valid results of a scorer of this namespace on a cluster, or why there are none.

    Raises redis.RedisError.
    """
    return _read_input(client, cluster, scorer, namespace).find_results(now)


def list_inputs(client: redis.Redis, cluster: str, record: ScorerRecord, now: float) -> list[InputView]:
    """Return the inputs of a scorer on a cluster; empty if it is no composite. Raises redis.RedisError."""
    views = []
    for score in record.inputs:
        scorer = _read_input(client, cluster, score.scorer, record.namespace)
        view = make_input_view(score, scorer.find_results(now))
        views.append(view.model_copy(update={"is_registered": scorer.is_registered}))
    return views


def make_input_view(score: ScoreInput, results: Sequence[Result] | NoResults) -> InputView:
    """Return the view of an input with these results."""
    view = InputView(name=score.name, scorer=score.scorer, default=score.default)
    if isinstance(results, NoResults):
        return view.model_copy(update={"problem": results.cause})
    mean = sum(value / len(results) for _, value in results) if results else None
    problem = "" if results else "its last score has no item"
    return view.model_copy(update={"results": len(results), "value": mean, "problem": problem})


@dataclass(frozen=True)
class _Input:
    """A scorer that is an input, and the data in Redis that decide about its score."""

    scorer: str
    #: Namespace of the composite.
    namespace: str
    record: ScorerRecord | None
    #: Why the scorer of this name and namespace was refused; empty if it was not.
    refusal: str
    #: Why it does not run on the cluster; empty if it does.
    absence: str
    state: PairState

    @property
    def is_registered(self) -> bool:
        """True if the registry has a scorer of this name and namespace."""
        return self.record is not None and self.record.namespace == self.namespace

    def find_results(self, now: float) -> Sequence[Result] | NoResults:
        """Return its valid results at `now` (unix seconds), or why there are none."""
        record, state = self.record, self.state
        if record is None or not self.is_registered:
            return NoResults(self._describe_absent_scorer())
        score = state.score
        if score is not None and not has_expired(score.valid_until, now):
            return record.aggregated(score.results)
        causes = [self.absence or record.problem]
        if not causes[0] and state.trouble is not None:
            failure = state.trouble
            causes = [f"its cycles fail, {failure.stage} {failure.reason}: {failure.message}".replace(",  ", ", ")]
        suffix = "".join(f"; {cause}" for cause in causes if cause)
        if state.last_success is None or not state.valid_until:
            return NoResults(f"it had no score on this cluster yet{suffix}")
        begun = score.at if score is not None else state.last_success
        expiry = describe_expiry(now - begun, max(0.0, state.valid_until - begun))
        return NoResults(f"{expiry}{suffix}", is_expired=True)

    def _describe_absent_scorer(self) -> str:
        if self.refusal:
            return f"DynamicScorer {self.scorer!r} does not run: {self.refusal}"
        problem = f"there is no DynamicScorer {self.scorer!r} in namespace {self.namespace!r}"
        if self.record is not None:
            problem += f"; the one in namespace {self.record.namespace!r} does not count"
        return problem


def _read_input(client: redis.Redis, cluster: str, scorer: str, namespace: str) -> _Input:
    notices = Notices(client)
    notice, place = notices.scorer(scorer), notices.cluster(cluster)
    unmet = [
        f"{condition.reason}: {condition.message}"
        for condition in (notice.conditions if notice is not None and notice.namespace == namespace else ())
        if condition.status == "False"
    ]
    return _Input(
        scorer,
        namespace,
        Registry(client).scorers().get(scorer),
        next(iter(unmet), ""),
        (place.absent.get(scorer, "") if place is not None else ""),
        Pairs(client).state(cluster, scorer),
    )
