"""Aggregation of results before items are made of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from dsf.api.problems import explain
from dsf.api.resolve import resolve
from dsf.api.scorerule import Aggregate, aggregate_results
from dsf.api.scoringresponse import ScoringResult
from tests.unit.api.factories import SYNCED, scorer

RESULTS = [
    ScoringResult({"node": "a", "pod": "1"}, 10),
    ScoringResult({"node": "b", "pod": "2"}, -5),
    ScoringResult({"node": "a", "pod": "3"}, 40),
    ScoringResult({"node": "a", "pod": "3"}, 25),
    ScoringResult({"pod": "4"}, 7),
]


@pytest.mark.parametrize(
    ("how", "scores"),
    [("max", (40, -5, 7)), ("min", (10, -5, 7)), ("mean", (25, -5, 7)), ("sum", (75, -5, 7)), ("last", (25, -5, 7))],
)
def test_each_group_is_one_result_with_its_labels_alone(how: str, scores: tuple[float, ...]) -> None:
    assert aggregate_results(RESULTS, ["node"], how) == [
        ({"node": "a"}, scores[0]),
        ({"node": "b"}, scores[1]),
        ({}, scores[2]),
    ]


def test_without_labels_all_are_one() -> None:
    assert aggregate_results(RESULTS, [], "max") == [({}, 40)]
    assert aggregate_results([], [], "max") == []


def test_sum_of_the_largest_numbers_is_infinite_and_their_mean_is_not() -> None:
    many = [ScoringResult({}, 1.7e308)] * 3
    assert aggregate_results(many, [], "mean")[0].score == pytest.approx(1.7e308)
    assert math.isinf(aggregate_results(many, [], "sum")[0].score)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"by": ["node"]}, "with: is required"),
        ({"with": "median"}, "with: 'median' is not one of max, min, mean, sum, last"),
        ({"by": ["rack"], "with": "max"}, "by[0]: 'rack' is not one of node, device, namespace, app, pod"),
        ({"by": ["node", "node"], "with": "max"}, "by: names a label twice"),
        ({"with": "max", "how": 1}, "how: is not a known field; allowed are by, with"),
    ],
)
def test_invalid_aggregate_is_refused(spec: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Aggregate.model_validate(spec, by_alias=True, by_name=False)
    assert expected in "; ".join(str(mistake) for mistake in explain(raised.value, Aggregate, spec))


def test_summary_carries_the_labels_and_function_of_aggregation() -> None:
    summary = resolve(scorer({"aggregate": {"by": ["node", "pod"], "with": "mean"}}, SYNCED)).summary
    assert (summary.aggregate_by, summary.aggregate_with) == (("node", "pod"), "mean")
