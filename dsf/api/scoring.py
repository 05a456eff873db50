"""Parser of a scoring API's answer.

This is in the path of every cycle, so an answer is checked in one plain pass and not by a model: 10,000 results take
some 20 ms. The size of the body is the caller's to bound.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dsf.api.labels import clean_text
from dsf.api.problems import head
from dsf.api.types import USED_LABELS
from dsf.errors import ScoringResponseError
from dsf.reasons import RefusalReason
from dsf.text import spaced

#: Most results one answer may hold. More would not fit into one AddOnPlacementScore.
MAX_RESULTS: Final = 10_000

#: Why a single result is refused, here or when its item is made (`dsf.api.score`).
REFUSALS: Final = frozenset[str](RefusalReason)

#: Values of all kinds in one answer: the parser's objects are many times as large as the text.
_MAX_VALUES: Final = 500_000

_USED: Final = frozenset(USED_LABELS)


class Result(NamedTuple):
    """One good result: the labels that are used, and the score as it was sent; always a finite number."""

    labels: dict[str, str]
    score: float


@dataclass(frozen=True, slots=True)
class ScoringResponse:
    """A valid answer."""

    #: The good results in the order of the answer.
    results: list[Result]
    #: How many results were refused, by reason (`dsf.reasons.RefusalReason`).
    refused: Counter[str]


def parse_response(body: bytes, *, max_results: int = MAX_RESULTS) -> ScoringResponse:
    """The results in the answer `body`.

    A single bad result is refused and counted, the others stand. Null in the place of the list is an empty one.

    Raises ScoringResponseError when the answer is not `{"results": [{...}]}` (reason `bad_answer`) or holds more than
    `max_results`, or more values than those can have (reason `too_many_results`).
    """
    results: list[Result] = []
    refused: Counter[str] = Counter()
    for index, element in enumerate(_elements(body, max_results)):
        if type(element) is not dict:
            raise ScoringResponseError(f"results[{index}] is not an object; the answer starts with {head(body)}")
        score = element.get("score")
        # Not isinstance: a bool is an int to Python, and whole numbers are read as float below.
        if type(score) is not float:
            refused[_score_reason(element)] += 1
            continue
        if not math.isfinite(score):
            refused[RefusalReason.NAN if math.isnan(score) else RefusalReason.INFINITE] += 1
            continue
        labels = _labels(element.get("metric"))
        if labels is None:
            refused[RefusalReason.BAD_LABELS] += 1
            continue
        results.append(Result(labels, score))
    return ScoringResponse(results, refused)


def _elements(body: bytes, max_results: int) -> list[Any]:
    if body.count(b",") + body.count(b"[") + body.count(b"{") > _MAX_VALUES:
        raise ScoringResponseError(
            f"the answer holds more than {_MAX_VALUES} values, too many for {max_results} results; "
            f"it starts with {head(body)}",
            "too_many_results",
        )
    try:
        # Whole numbers as float: one of 400 digits is then infinite, and one of 5,000 no error of the parser's.
        document = json.loads(body.decode("utf-8-sig"), parse_int=float)
    except RecursionError:
        raise ScoringResponseError(f"the answer is nested too deeply; it starts with {head(body)}") from None
    except ValueError as error:
        raise ScoringResponseError(f"the answer is not JSON ({error}); it starts with {head(body)}") from None
    elements = document.get("results") if isinstance(document, dict) else None
    if elements is None and isinstance(document, dict) and "results" in document:
        # How Go writes a list that nothing was put into.
        return []
    if not isinstance(elements, list):
        raise ScoringResponseError(f'the answer is not {{"results": [...]}}; it starts with {head(body)}')
    if len(elements) > max_results:
        raise ScoringResponseError(
            f"the answer has {len(elements)} results, more than the {max_results} that are allowed", "too_many_results"
        )
    return elements


def _score_reason(element: Mapping[str, Any]) -> str:
    if "score" not in element:
        return RefusalReason.MISSING_SCORE
    return RefusalReason.NULL_SCORE if element["score"] is None else RefusalReason.BAD_SCORE


def _labels(metric: Any) -> dict[str, str] | None:
    """The labels that are used; None when they are no labels. A result without labels is one series without labels."""
    if metric is None:
        return {}
    if type(metric) is not dict:
        return None
    labels = {}
    for name, value in metric.items():
        if type(value) is not str:
            return None
        if name in _USED:
            # Halves of characters, too, which an escape can spell.
            labels[name] = value if value.isprintable() else spaced(clean_text(value))
    return labels
