"""Aggregation of results before they become items: `spec.aggregate`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from dsf.api.meta import SpecModel
from dsf.api.scoring import ScoringResult
from dsf.api.types import USED_LABELS, UsedLabel

_Label = Annotated[UsedLabel, Field(description="A label of a result that the framework uses.")]


def _each_once(labels: tuple[UsedLabel, ...]) -> tuple[UsedLabel, ...]:
    if len(set(labels)) != len(labels):
        raise ValueError("names a label twice")
    return labels


class Aggregate(SpecModel):
    """Merges results with the same labels."""

    by: Annotated[tuple[_Label, ...], Field(max_length=len(USED_LABELS)), AfterValidator(_each_once)] = Field(
        default=(),
        description="Labels to keep; results with the same values of them are one group. None: all are one group.",
    )
    how: Literal["max", "min", "mean", "sum", "last"] = Field(
        alias="with", description="Function for the scores of a group. last: the last in the answer."
    )


def _mean(scores: Sequence[float]) -> float:
    # Divided first: a sum of the largest numbers is infinite.
    return math.fsum(score / len(scores) for score in scores)


_FUNCTIONS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "max": max,
    "min": min,
    "mean": _mean,
    "sum": sum,
    "last": lambda scores: scores[-1],
}


def groups(results: Iterable[tuple[Mapping[str, str], float]], by: Sequence[str]) -> dict[tuple[str, ...], list[float]]:
    """The scores of each group in the order of the answer, by the values of its labels; an absent one is empty."""
    scores_by_group: dict[tuple[str, ...], list[float]] = {}
    for labels, score in results:
        scores_by_group.setdefault(tuple([labels.get(name, "") for name in by]), []).append(score)
    return scores_by_group


def aggregated(results: Iterable[tuple[Mapping[str, str], float]], by: Sequence[str], how: str) -> list[ScoringResult]:
    """Return a result per group, in order of first occurrence. A sum may be infinite."""
    function = _FUNCTIONS[how]
    return [
        ScoringResult({name: value for name, value in zip(by, values, strict=True) if value}, float(function(scores)))
        for values, scores in groups(results, by).items()
    ]
