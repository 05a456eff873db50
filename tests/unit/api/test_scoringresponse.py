from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.api.scoringresponse import parse_response
from dsf.api.types import USED_LABELS
from dsf.errors import ScoringResponseError
from tests.cases import load


def answer(count: int) -> bytes:
    results = [
        {"metric": {"node": f"node-{n}", "namespace": "kube-system", "pod": f"pod-{n}"}, "score": n * 0.37 % 100}
        for n in range(count)
    ]
    return json.dumps({"results": results}).encode()


@pytest.mark.parametrize("case", load("scoring_answers"))
def test_good_answer(case: dict[str, Any]) -> None:
    response = parse_response(case["body"].encode())
    assert [[labels, score] for labels, score in response.results] == case["results"]
    assert response.refusal_counts == case["refused"]


@pytest.mark.parametrize("case", load("scoring_answer_errors"))
def test_bad_answer(case: dict[str, Any]) -> None:
    with pytest.raises(ScoringResponseError) as raised:
        parse_response(case["body"].encode())
    assert str(raised.value) == case["message"]
    assert raised.value.reason == "bad_answer"


def test_response_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ScoringResponseError) as raised:
        parse_response(b"\xff{}")
    assert str(raised.value) == (
        "the answer is not JSON ('utf-8' codec can't decode byte 0xff in position 0: invalid start byte); "
        "it starts with '\ufffd{}'"
    )


def test_bad_response_is_shown_truncated() -> None:
    with pytest.raises(ScoringResponseError) as raised:
        parse_response(b"x\n" * 100_000)
    assert str(raised.value).endswith("it starts with '" + r"x\n" * 60 + "'...")


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"results":[' + b'{"metric":' * 100_000])
def test_deep_nesting(body: bytes) -> None:
    with pytest.raises(
        ScoringResponseError, match=r"^the answer is not parsed: it is nested deeper than 64; it starts with '"
    ):
        parse_response(body)


def test_integer_of_5000_digits_counts_as_infinite() -> None:
    assert parse_response(b'{"results":[{"score":-' + b"9" * 5000 + b"}]}").refusal_counts == {"infinite": 1}


def test_too_many_results() -> None:
    assert len(parse_response(answer(10_000)).results) == 10_000
    with pytest.raises(ScoringResponseError) as raised:
        parse_response(answer(10_001))
    assert str(raised.value) == "the answer has 10001 results, more than the 10000 that are allowed"
    assert raised.value.reason == "too_many_results"


KEYS = st.sampled_from(["metric", "score", "node", "x"])
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
ELEMENT = st.dictionaries(KEYS, PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(KEYS, PLAIN), max_size=4)


@given(st.lists(ELEMENT))
def test_every_result_is_accepted_or_counted_and_scores_are_finite(elements: list[dict[str, Any]]) -> None:
    response = parse_response(json.dumps({"results": elements}).encode())
    assert len(response.results) + response.refusal_counts.total() == len(elements)
    for labels, score in response.results:
        assert math.isfinite(score)
        assert set(labels) <= set(USED_LABELS)
        assert all(value.encode().decode() == value for value in labels.values())


def test_response_with_too_many_values_is_refused_before_parsing() -> None:
    with pytest.raises(ScoringResponseError, match="more than 500000 values"):
        parse_response(b'{"x":[' + b"[]," * 300_000 + b'[]],"results":[]}')


def test_invisible_characters_are_removed_from_labels() -> None:
    body = json.dumps({"results": [{"metric": {"node": "n\x1b[31m\u202e1\x9b"}, "score": 1}]}).encode()
    assert parse_response(body).results[0].labels == {"node": "n [31m 1 "}
