"""The inputs of a composite scorer on one cluster: their scores in Redis, or the reasons why scores are missing."""

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
    """Return the valid results of a scorer of this namespace on a cluster, or the reason why there are none.

    `now` is in unix seconds. Raises redis.RedisError.
    """
    return _read_input(client, cluster, scorer, namespace).find_results(now)


def list_inputs(client: redis.Redis, cluster: str, record: ScorerRecord, now: float) -> list[InputView]:
    """Return the inputs of a scorer on a cluster at `now` (unix seconds); empty if it is not a composite.

    Raises redis.RedisError.
    """
    views = []
    for score_input in record.inputs:
        input_scorer = _read_input(client, cluster, score_input.scorer, record.namespace)
        view = make_input_view(score_input, input_scorer.find_results(now))
        views.append(view.model_copy(update={"is_registered": input_scorer.is_registered}))
    return views


def make_input_view(score: ScoreInput, results: Sequence[Result] | NoResults) -> InputView:
    """Return the view of an input: the mean of its results, or the reason why there are none."""
    view = InputView(name=score.name, scorer=score.scorer, default=score.default)
    if isinstance(results, NoResults):
        return view.model_copy(update={"problem": results.cause})
    mean = sum(value / len(results) for _, value in results) if results else None
    problem = "" if results else "its last score has no item"
    return view.model_copy(update={"results": len(results), "value": mean, "problem": problem})


@dataclass(frozen=True)
class _Input:
    """A scorer that is an input of a composite, and its data in Redis."""

    scorer: str
    #: Namespace of the composite.
    namespace: str
    record: ScorerRecord | None
    #: Reason why the hub rejected the scorer of this name and namespace; empty if it did not.
    refusal: str
    #: Reason why the scorer does not run on the cluster; empty if it does.
    absence: str
    state: PairState

    @property
    def is_registered(self) -> bool:
        """True if the registry has a scorer of this name and namespace."""
        return self.record is not None and self.record.namespace == self.namespace

    def find_results(self, now: float) -> Sequence[Result] | NoResults:
        """Return the scorer's valid results at `now` (unix seconds), or the reason why there are none."""
        record, state = self.record, self.state
        if record is None or not self.is_registered:
            return NoResults(self._describe_absent_scorer())
        score = state.score
        if score is not None and not has_expired(score.valid_until, now):
            return record.aggregate_if_set(score.results)
        causes = [self.absence or record.problem]
        if not causes[0] and state.current_failure is not None:
            failure = state.current_failure
            causes = [f"its cycles fail, {failure.stage} {failure.reason}: {failure.message}".replace(",  ", ", ")]
        suffix = "".join(f"; {cause}" for cause in causes if cause)
        if state.last_success is None or not state.valid_until:
            return NoResults(f"it had no score on this cluster yet{suffix}")
        measured_at = score.at if score is not None else state.last_success
        expiry = describe_expiry(now - measured_at, max(0.0, state.valid_until - measured_at))
        return NoResults(f"{expiry}{suffix}", is_expired=True)

    def _describe_absent_scorer(self) -> str:
        if self.refusal:
            return f"DynamicScorer {self.scorer!r} does not run: {self.refusal}"
        problem = f"there is no DynamicScorer {self.scorer!r} in namespace {self.namespace!r}"
        if self.record is not None:
            problem += f"; the one in namespace {self.record.namespace!r} does not count"
        return problem


def _read_input(client: redis.Redis, cluster: str, scorer: str, namespace: str) -> _Input:
    """Read the data of an input from Redis. `namespace` is the namespace of the composite."""
    notices = Notices(client)
    scorer_notice, cluster_notice = notices.read_scorer(scorer), notices.read_cluster(cluster)
    is_in_namespace = scorer_notice is not None and scorer_notice.namespace == namespace
    unmet_conditions = [
        f"{condition.reason}: {condition.message}"
        for condition in (scorer_notice.conditions if scorer_notice is not None and is_in_namespace else ())
        if condition.status == "False"
    ]
    return _Input(
        scorer=scorer,
        namespace=namespace,
        record=Registry(client).read_scorers().get(scorer),
        refusal=next(iter(unmet_conditions), ""),
        absence=cluster_notice.absent.get(scorer, "") if cluster_notice is not None else "",
        state=Pairs(client).read_state(cluster, scorer),
    )
