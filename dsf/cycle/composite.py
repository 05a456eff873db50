"""Composite scores: the last results of a cluster's scorers, and their combination by an expression.

An input without a valid score is missing. Its default is used, or no item has a value. If the agent has had no result
of an input without a default since its start, the cycle fails, because the agent does not know whether a valid score
exists. The last composite score then stays valid, as that of any failing scorer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pydantic import ValidationError

from dsf.api.expressions import ScoreInput
from dsf.api.summary import ScorerSummary
from dsf.errors import CycleError
from dsf.reasons import RefusalReason

if TYPE_CHECKING:
    # Commands that only describe missing inputs must not load the sources and their HTTP client.
    from dsf.cycle.evaluation import Evaluation

#: Maximum number of results of all inputs of a composite.
MAX_INPUT_RESULTS: Final = 100_000
#: Number of results of all inputs above which composites are evaluated one at a time, because their label sets take up
#: to 100 MB.
_MANY_RESULTS: Final = 5_000
#: Held during the evaluation of a composite with many results.
_many_results_lock = threading.Lock()

#: A result: labels and score.
Result = tuple[Mapping[str, str], float]


class NoResults(NamedTuple):
    """The reason why a scorer has no valid results."""

    cause: str
    #: True if the scorer had results, which have expired. False if the agent never had any.
    is_expired: bool = False


def is_unknown(results: Sequence[Result] | NoResults) -> bool:
    """True if the agent never had results of the scorer, so that it does not know whether a valid score exists."""
    return isinstance(results, NoResults) and not results.is_expired


#: Returns the valid results of a scorer in a namespace, or the reason why there are none.
FindResults = Callable[[str, str | None], Sequence[Result] | NoResults]

_Labels = frozenset[tuple[str, str]]
_NO_LABELS: _Labels = frozenset()


class _StoredResults(NamedTuple):
    results: Sequence[Result]
    #: By `LastResults.read_clock`.
    at: float
    validity: float
    namespace: str | None


class LastResults:
    """The last results of each scorer of an agent. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_scorer: dict[str, _StoredResults] = {}

    def read_clock(self) -> float:
        """Return seconds by the clock that dates the results. A backtest overrides it with a clock in the past."""
        return time.monotonic()

    def put(self, summary: ScorerSummary, results: Sequence[Result], validity: float) -> None:
        """Store the results of a cycle of this scorer, which are valid for `validity` seconds."""
        stored_results = _StoredResults(_aggregate(summary, results), self.read_clock(), validity, summary.namespace)
        with self._lock:
            self._by_scorer[summary.name] = stored_results

    def find(self, scorer: str, namespace: str | None) -> Sequence[Result] | NoResults:
        """Return the valid results of a scorer of this namespace, or why there are none."""
        with self._lock:
            last_results = self._by_scorer.get(scorer)
        if last_results is None or last_results.namespace != namespace:
            return NoResults("it had no score on this cluster since the agent started")
        age = self.read_clock() - last_results.at
        if age > last_results.validity:
            return NoResults(describe_expiry(age, last_results.validity), is_expired=True)
        return last_results.results

    def has_inputs(self, summary: ScorerSummary) -> bool:
        """True if each input without a default has had a score, so that a cycle of this composite does not fail."""
        return not any(
            is_unknown(self.find(score.scorer, summary.namespace))
            for score in summary.scores or ()
            if score.default is None
        )

    def drop_expired(self, scorers: Container[str]) -> None:
        """Drop expired results, and forget the scorers whose results have expired, except these `scorers`.

        The results of a scorer that no longer runs stay until they expire.
        """
        now = self.read_clock()
        with self._lock:
            for scorer, stored_results in list(self._by_scorer.items()):
                if now - stored_results.at <= stored_results.validity:
                    continue
                if scorer in scorers:
                    self._by_scorer[scorer] = stored_results._replace(results=())
                else:
                    del self._by_scorer[scorer]


def _aggregate(summary: ScorerSummary, results: Sequence[Result]) -> Sequence[Result]:
    """Return the results as the hub aggregates them."""
    try:
        return summary.rule.aggregate_if_set(results) if summary.aggregate_with else results
    except ValidationError:
        # A newer hub may use an aggregation that this agent does not know.
        return results


def describe_expiry(age: float, validity: float) -> str:
    """Return why a score of this age does not count; both are seconds."""
    return f"its last score is {age:.0f} s old and was valid for {validity:.0f} s"


def find_no_results(scorer: str, namespace: str | None) -> NoResults:
    """Return no results, for callers outside of an agent."""
    del scorer, namespace
    return NoResults("the scores of other scorers are with the cluster's agent")


def score_inputs(evaluation: Evaluation, summary: ScorerSummary, find: FindResults) -> None:
    """Evaluate the expression for each set of labels that the results of its inputs have.

    A result without labels is combined with every set. A set without a value for each input is refused. Raises
    CycleError if an input without a default never had a result, and if all inputs together have too many results.
    """
    inputs = summary.scores or ()
    results_by_input: dict[str, Sequence[Result]] = {}
    causes: dict[str, str] = {}
    for score in inputs:
        results = find(score.scorer, summary.namespace)
        missing_text = f"{score.name!r} is missing, the score of {score.scorer!r}"
        if isinstance(results, NoResults):
            causes[score.name] = f"{missing_text}: {results.cause}"
            if score.default is None and is_unknown(results):
                # The first cycles of new scorers run at the same time, so the input may arrive before a retry.
                raise CycleError("score", "missing_input", causes[score.name], retryable=True)
            results = ()
        else:
            causes[score.name] = f"{missing_text}: it has no item with these labels"
        results_by_input[score.name] = results
    total = sum(map(len, results_by_input.values()))
    if total > MAX_INPUT_RESULTS:
        raise CycleError(
            "score",
            "too_many_results",
            f"the scores that it combines have {total} results together, more than {MAX_INPUT_RESULTS}; let them "
            "return fewer, or combine fewer",
        )
    with _many_results_lock if total > _MANY_RESULTS else contextlib.nullcontext():
        _evaluate(evaluation, inputs, results_by_input, causes)


def _evaluate(
    evaluation: Evaluation,
    inputs: Sequence[ScoreInput],
    results_by_input: Mapping[str, Sequence[Result]],
    causes: Mapping[str, str],
) -> None:
    values_by_input: dict[str, dict[_Labels, float]] = {
        name: {frozenset(item for item in labels.items() if item[1]): value for labels, value in results}
        for name, results in results_by_input.items()
    }
    label_sets = dict.fromkeys(labels for values in values_by_input.values() for labels in values if labels)
    scope = evaluation.scope

    def yield_label_sets() -> Iterator[Mapping[str, str]]:
        for labels in label_sets or {_NO_LABELS: None}:
            scope["labels"] = dict(labels)
            for score in inputs:
                values = values_by_input[score.name]
                value = values.get(labels, values.get(_NO_LABELS, score.default))
                if value is None:
                    evaluation.refuse(RefusalReason.MISSING_INPUT, scope["labels"], causes[score.name])
                    break
                scope[score.name] = value
            else:
                yield scope["labels"]

    evaluation.run(yield_label_sets())
