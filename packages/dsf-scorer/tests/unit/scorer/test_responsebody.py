"""Responses contain only finite scores; other results are counted or raise an error that names the place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dsf.api.scoringresponse import parse_response
from dsf.scorer import Score, Skipped
from dsf.scorer.responsebody import encode


@pytest.mark.parametrize("value", [5, 5.0, np.float64(5), np.float32(5), np.int64(5), np.array(5.0), Fraction(5)])
def test_numbers_of_any_kind(value: Any) -> None:
    score = Score(value, {"a": "b"})
    assert score.value == 5.0
    assert type(score.value) is float


@pytest.mark.parametrize("value", [None, "5", b"5", True, [5], np.array([1.0, 2.0]), 5j])
def test_non_numeric_score_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        Score(value)


@pytest.mark.parametrize("labels", [{"a": 1}, {1: "a"}, {"a": None}])
def test_labels_are_text(labels: Any) -> None:
    with pytest.raises(TypeError, match="must be text"):
        Score(1, labels)


def test_labels_are_a_copy() -> None:
    labels = {"a": "b"}
    score = Score(1, labels)
    labels["a"] = "c"
    assert score.labels == {"a": "b"}
    assert Score(1).labels == {}


def test_encoded_scores_are_parsed_by_the_framework() -> None:
    answer = encode([Score(1.5, {"pod": 'é"\\'}), Score(1e308), Score(-7)], 10)
    response = parse_response(answer.body)
    assert [(result.labels, result.score) for result in response.results] == [
        ({"pod": 'é"\\'}, 1.5),
        ({}, 1e308),
        ({}, -7),
    ]
    assert not response.refusal_counts
    assert answer.results == 3


def test_non_finite_scores_are_dropped_and_counted() -> None:
    results = [Score(float("nan")), Score(float("inf")), Score(float("-inf")), Skipped("too_short"), Score(1)]
    answer = encode(results, 10)
    dropped = {"nan": 1, "infinite": 2, "too_short": 1}
    assert json.loads(answer.body) == {"results": [{"metric": {}, "score": 1.0}], "dropped": dropped}
    assert dict(answer.refusal_counts) == dropped
    # The framework still parses it.
    assert len(parse_response(answer.body).results) == 1
    assert "dropped" not in json.loads(encode([Score(1)], 10).body)


def test_generator_of_scores_is_encoded() -> None:
    def generate() -> Iterator[Score]:
        yield Score(1)

    assert encode(generate(), 1).results == 1


@pytest.mark.parametrize(
    ("results", "message"), [(None, "returned None"), ([5], "gave 5"), ({"results": []}, "gave 'results'")]
)
def test_invalid_score_object_is_refused(results: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        encode(results, 10)


def test_too_many_scores() -> None:
    with pytest.raises(ValueError, match="more than 2 scores"):
        encode([Score(1)] * 3, 2)
