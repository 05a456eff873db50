"""The stage score of a scorer with an expression, in place of a scoring API."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from dsf.api.scoringresponse import MAX_LABEL_CHARACTERS, MAX_RESULTS, ScoringResponse, ScoringResult, clean_label_value
from dsf.api.types import USED_LABELS
from dsf.cycle.series import SeriesParts, read_series
from dsf.errors import CycleError
from dsf.expression import MAX_STEPS, EvaluationError, Expression, Scope
from dsf.messages import MESSAGE_LIMIT
from dsf.reasons import RefusalReason
from dsf.text import clean

#: Maximum steps of all evaluations of a cycle, which take some seconds of one CPU.
MAX_CYCLE_STEPS: Final = 20_000_000
_USED: Final = frozenset[str](USED_LABELS)
#: Items between two calls of `check`. Each item takes at most MAX_STEPS.
_ITEMS_PER_CHECK: Final = 16
#: Maximum characters of the labels in an example.
_MAX_EXAMPLE_CHARACTERS: Final = 200


def _compute_deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


def _drop_nan(values: Sequence[float]) -> Sequence[float]:
    """Return the values without NaN, or all values if each is NaN."""
    return [value for value in values if value == value] or values


#: Name of a variable -> function that computes it from the values of a series, of which there is at least one.
_STATISTICS: Final[Mapping[str, Callable[[Sequence[float]], Any]]] = {
    "last": itemgetter(-1),
    "first": itemgetter(0),
    "min": lambda values: min(_drop_nan(values)),
    "max": lambda values: max(_drop_nan(values)),
    "mean": lambda values: sum(values) / len(values),
    "sum": sum,
    "count": lambda values: float(len(values)),
    "stddev": _compute_deviation,
    "values": lambda values: values,
}


class Evaluation:
    """Evaluates one expression for the items of a cycle, and collects the results."""

    def __init__(
        self,
        expression: Expression,
        shared_variables: Mapping[str, Any],
        check: Callable[[], None],
        nouns: tuple[str, str] = ("series", "series"),
    ) -> None:
        """`shared_variables` are the same for all items. `check` is called after every few items and may raise. `nouns`
        are the words for one item and for several in messages."""
        self._expression = expression
        self._check = check
        self._item_noun, self._items_noun = nouns
        self._steps = MAX_CYCLE_STEPS
        #: The variables of the next item.
        self.scope = Scope(shared_variables)
        self._characters = 0
        self._results: list[ScoringResult] = []
        self._refusal_counts: Counter[str] = Counter()
        self._example = ""
        self._item_count = 0

    @property
    def response(self) -> ScoringResponse:
        """Return the results of all items so far."""
        note = self._example
        if not self._results and not self._refusal_counts:
            is_null = f"the expression is null for each of {self._item_count} {self._items_noun}"
            note = is_null if self._item_count else f"there are no {self._items_noun}"
        return ScoringResponse(self._results, self._refusal_counts, clean(note, MESSAGE_LIMIT))

    def run(self, items: Iterable[Mapping[str, str]]) -> None:
        """Evaluate the expression for each item: its labels, once its variables are in the scope. Raises CycleError."""
        # Names without dots: there may be 200,000 items.
        scope, evaluate, size, accept = self.scope, self._expression.evaluate, self._expression.size, self._accept
        for number, labels in enumerate(items):
            if number % _ITEMS_PER_CHECK == 0:
                self._check()
            self._item_count += 1
            scope.steps = MAX_STEPS
            try:
                score = evaluate(scope)
            except EvaluationError as error:
                self.refuse(RefusalReason.EXPRESSION_FAILED, labels, str(error))
            else:
                if score is not None:
                    accept(labels, score)
            self._steps -= MAX_STEPS - scope.steps + size
            if self._steps < 0:
                raise CycleError(
                    "score",
                    "expression_costly",
                    f"the expression takes more than {MAX_CYCLE_STEPS} steps, evaluated for "
                    f"{self._item_count} {self._items_noun}",
                )

    def refuse(self, reason: RefusalReason, labels: Mapping[str, str], cause: str) -> None:
        """Count an item without a score. The first cause becomes the example."""
        self._refusal_counts[reason] += 1
        if not self._example:
            text = ", ".join(f'{name}="{value}"' for name, value in labels.items())[:_MAX_EXAMPLE_CHARACTERS]
            self._example = f"{cause}, for the {self._item_noun} {{{text}}}" if text else cause

    def _accept(self, labels: Mapping[str, str], score: float) -> None:
        if not math.isfinite(score):
            reason = RefusalReason.NAN if math.isnan(score) else RefusalReason.INFINITE
            self.refuse(reason, labels, f"the value is {score}")
            return
        item_labels = {name: value for name, value in labels.items() if name in _USED}
        text = "".join(item_labels.values())
        if not text.isprintable():
            item_labels = {name: clean_label_value(value) for name, value in item_labels.items()}
        self._characters += len(text)
        if len(self._results) == MAX_RESULTS or self._characters > MAX_LABEL_CHARACTERS:
            raise CycleError(
                "score",
                "too_many_results",
                f"the expression has a value for more than {len(self._results)} {self._items_noun}, and a cycle may "
                f"have {MAX_RESULTS} results with {MAX_LABEL_CHARACTERS} characters of labels; aggregate the query, or "
                "give null for the others",
            )
        # A third of the time of calling the class.
        self._results.append(tuple.__new__(ScoringResult, (item_labels, score)))


def score_series(
    evaluation: Evaluation, expression: Expression, request: Iterable[bytes | memoryview], queries: Sequence[int]
) -> None:
    """Evaluate the expression for each series of a scoring request. `queries` has the number of series of each query.

    Raises CycleError.
    """
    variables = expression.variables
    statistics = [(name, statistic) for name, statistic in _STATISTICS.items() if name in variables]
    parts_to_read = SeriesParts(values=any(name != "last" for name, _ in statistics), times="times" in variables)
    numbers = (index for index, count in enumerate(queries) for _ in range(count))
    scope = evaluation.scope
    reads_query, reads_labels = "query" in variables, "labels" in variables

    def items() -> Iterator[Mapping[str, str]]:
        for labels, values, times in read_series(request, parts_to_read):
            if reads_query:
                scope["query"] = next(numbers, 0)
            if not values:
                evaluation.refuse(RefusalReason.EXPRESSION_FAILED, labels, "the series has no samples")
                continue
            for name, statistic in statistics:
                scope[name] = statistic(values)
            if reads_labels:
                scope["labels"] = labels
            if parts_to_read.times:
                scope["times"] = times
            yield labels

    evaluation.run(items())
