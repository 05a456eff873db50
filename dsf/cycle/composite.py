"""Scores of scores: the last results of a cluster's scorers, and their combination by an expression."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from dsf.api.summary import ScorerSummary
from dsf.cycle.evaluation import Evaluation
from dsf.errors import CycleError
from dsf.reasons import RefusalReason

#: A result: labels and score.
Result = tuple[Mapping[str, str], float]
#: Returns the valid results of a scorer of a namespace, or why there are none.
FindResults = Callable[[str, str | None], Sequence[Result] | str]

_Labels = frozenset[tuple[str, str]]
_NONE: _Labels = frozenset()


class _Stored(NamedTuple):
    results: Sequence[Result]
    #: By time.monotonic().
    expires: float
    validity: float
    namespace: str | None


class LastResults:
    """The last results of each scorer of an agent. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_scorer: dict[str, _Stored] = {}

    def put(self, summary: ScorerSummary, results: Sequence[Result]) -> None:
        """Store the results of a cycle of this scorer."""
        validity = float(summary.validity_seconds)
        with self._lock:
            self._by_scorer[summary.name] = _Stored(results, time.monotonic() + validity, validity, summary.namespace)

    def find(self, scorer: str, namespace: str | None) -> Sequence[Result] | str:
        """Return the valid results of a scorer of this namespace, or why there are none."""
        with self._lock:
            last_results = self._by_scorer.get(scorer)
        if last_results is None or last_results.namespace != namespace:
            return "it had no score on this cluster since the agent started"
        age = time.monotonic() - last_results.expires + last_results.validity
        if age > last_results.validity:
            return f"its last score is {age:.0f} s old and was valid for {last_results.validity:.0f} s"
        return last_results.results

    def retain(self, scorers: Container[str]) -> None:
        """Forget the results of all other scorers."""
        with self._lock:
            for scorer in [scorer for scorer in self._by_scorer if scorer not in scorers]:
                del self._by_scorer[scorer]


def no_results(scorer: str, namespace: str | None) -> str:
    """Return why there are no results where no agent runs."""
    del scorer, namespace
    return "the scores of other scorers are with the cluster's agent"


def score_inputs(evaluation: Evaluation, summary: ScorerSummary, find: FindResults) -> None:
    """Evaluate the expression for each set of labels that the results of its inputs have.

    A result without labels goes with every set. Raises CycleError if a scorer without a default has no valid score.
    """
    inputs = summary.scores or ()
    by_input: dict[str, dict[_Labels, float]] = {}
    for score in inputs:
        results = find(score.scorer, summary.namespace)
        if isinstance(results, str):
            if score.default is None:
                raise CycleError(
                    "score", "missing_input", f"{score.name!r} is missing, the score of {score.scorer!r}: {results}"
                )
            results = ()
        by_input[score.name] = {frozenset(labels.items()): value for labels, value in results}
    sets = dict.fromkeys(labels for values in by_input.values() for labels in values if labels)
    scope = evaluation.scope

    def items() -> Iterator[Mapping[str, str]]:
        for labels in sets or {_NONE: None}:
            scope["labels"] = dict(labels)
            for score in inputs:
                values = by_input[score.name]
                value = values.get(labels, values.get(_NONE, score.default))
                if value is None:
                    cause = f"{score.name!r} is missing, the score of {score.scorer!r}"
                    evaluation.refuse(RefusalReason.MISSING_INPUT, scope["labels"], cause)
                    break
                scope[score.name] = value
            else:
                yield scope["labels"]

    evaluation.run(items())
