"""Scores of scores: the last results of a cluster's scorers, and their combination by an expression.

An input without a valid score is missing: its default counts, or no item has a value. The exception is an agent that
has had no result of the input since its start. It does not know whether a valid score exists, so the cycle fails, and
the last composite stays like the score of every failing scorer.
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
    # Commands describe missing inputs. They load neither sources nor their HTTP client.
    from dsf.cycle.evaluation import Evaluation

#: Maximum number of results of all inputs of a composite.
MAX_INPUT_RESULTS: Final = 100_000
#: Number of results of all inputs above which composites are evaluated one at a time, because their label sets take up
#: to 100 MB.
_MANY_RESULTS: Final = 5_000
_turn = threading.Lock()

#: A result: labels and score.
Result = tuple[Mapping[str, str], float]


class NoResults(NamedTuple):
    """Tells why a scorer has no valid results."""

    cause: str
    #: Whether it had results that have expired; otherwise the agent has never had any.
    is_expired: bool = False


#: Returns the valid results of a scorer of a namespace, or why there are none.
FindResults = Callable[[str, str | None], Sequence[Result] | NoResults]

_Labels = frozenset[tuple[str, str]]
_NONE: _Labels = frozenset()


class _Stored(NamedTuple):
    results: Sequence[Result]
    #: By `LastResults.read_clock`.
    at: float
    validity: float
    namespace: str | None


class LastResults:
    """Stores the last results of each scorer of an agent. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_scorer: dict[str, _Stored] = {}

    def read_clock(self) -> float:
        """Return seconds by the clock of the results. A backtest has a clock of its own, at a moment in the past."""
        return time.monotonic()

    def put(self, summary: ScorerSummary, results: Sequence[Result], validity: float) -> None:
        """Store the results of a cycle of this scorer, which are valid for so many seconds."""
        stored = _Stored(_aggregate(summary, results), self.read_clock(), validity, summary.namespace)
        with self._lock:
            self._by_scorer[summary.name] = stored

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

    def retain(self, scorers: Container[str]) -> None:
        """Drop the expired results of all scorers, and forget other scorers than these with expired results.

        The score of a scorer that does not run any more is valid until it expires.
        """
        now = self.read_clock()
        with self._lock:
            for scorer, stored in list(self._by_scorer.items()):
                if now - stored.at <= stored.validity:
                    continue
                if scorer in scorers:
                    self._by_scorer[scorer] = stored._replace(results=())
                else:
                    del self._by_scorer[scorer]


def _aggregate(summary: ScorerSummary, results: Sequence[Result]) -> Sequence[Result]:
    """Return the results as the hub aggregates them."""
    try:
        return summary.rule.aggregate_if_set(results) if summary.aggregate_with else results
    except ValidationError:
        # A word of a newer hub.
        return results


def describe_expiry(age: float, validity: float) -> str:
    """Return why a score of this age does not count; both are seconds."""
    return f"its last score is {age:.0f} s old and was valid for {validity:.0f} s"


def refuse_without_agent(scorer: str, namespace: str | None) -> NoResults:
    """Return why there are no results where no agent runs."""
    del scorer, namespace
    return NoResults("the scores of other scorers are with the cluster's agent")


def score_inputs(evaluation: Evaluation, summary: ScorerSummary, find: FindResults) -> None:
    """Evaluate the expression for each set of labels that the results of its inputs have.

    A result without labels goes with every set. An item without a value for each input is refused. Raises CycleError if
    an input without a default never had a result, and for too many results of all inputs.
    """
    inputs = summary.scores or ()
    results_by_input: dict[str, Sequence[Result]] = {}
    causes: dict[str, str] = {}
    for score in inputs:
        results = find(score.scorer, summary.namespace)
        missing = f"{score.name!r} is missing, the score of {score.scorer!r}"
        if isinstance(results, NoResults):
            causes[score.name] = f"{missing}: {results.cause}"
            if score.default is None and not results.is_expired:
                raise CycleError("score", "missing_input", causes[score.name])
            results = ()
        else:
            causes[score.name] = f"{missing}: it has no item with these labels"
        results_by_input[score.name] = results
    total = sum(map(len, results_by_input.values()))
    if total > MAX_INPUT_RESULTS:
        raise CycleError(
            "score",
            "too_many_results",
            f"the scores that it combines have {total} results together, more than {MAX_INPUT_RESULTS}; let them "
            "return fewer, or combine fewer",
        )
    with _turn if total > _MANY_RESULTS else contextlib.nullcontext():
        _evaluate(evaluation, inputs, results_by_input, causes)


def _evaluate(
    evaluation: Evaluation,
    inputs: Sequence[ScoreInput],
    results_by_input: Mapping[str, Sequence[Result]],
    causes: Mapping[str, str],
) -> None:
    by_input: dict[str, dict[_Labels, float]] = {
        name: {frozenset(item for item in labels.items() if item[1]): value for labels, value in results}
        for name, results in results_by_input.items()
    }
    sets = dict.fromkeys(labels for values in by_input.values() for labels in values if labels)
    scope = evaluation.scope

    def items() -> Iterator[Mapping[str, str]]:
        for labels in sets or {_NONE: None}:
            scope["labels"] = dict(labels)
            for score in inputs:
                values = by_input[score.name]
                value = values.get(labels, values.get(_NONE, score.default))
                if value is None:
                    evaluation.refuse(RefusalReason.MISSING_INPUT, scope["labels"], causes[score.name])
                    break
                scope[score.name] = value
            else:
                yield scope["labels"]

    evaluation.run(items())
