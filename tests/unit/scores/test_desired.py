"""The desired object of a pair."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.api.scorerule import EmptyItem, EmptyRule, FailingRule
from dsf.scores.desired import UNKNOWN, DesiredScore, Unknown, compute_desired_score, compute_validity_factor
from dsf.store.pairs import PairScore
from dsf.store.registry import ClusterRecord, ScorerRecord

NOW = 1_800_000_000.0
CLUSTER = ClusterRecord(name="c", uid="u")
SCORE = PairScore(run="r", score_name="score", at=NOW - 10, valid_until=NOW + 290, items=[("a", 1), ("b", 2)])
VALUE = FailingRule(failure_threshold=2, behavior="Value", value=-7)


def record(**values: object) -> ScorerRecord:
    return ScorerRecord(**{"name": "s", "score_name": "score", "interval": 30, "validity": 300, **values})


def desired_score(
    score: PairScore | None = SCORE,
    failing: int = 0,
    factor: float = 1.0,
    current_valid_until: float = 0.0,
    **values: object,
) -> DesiredScore | Unknown | None:
    return compute_desired_score(
        score, failing, record(**values), CLUSTER, now=NOW, factor=factor, current_valid_until=current_valid_until
    )


def test_score_is_desired_until_it_expires() -> None:
    score_object = desired_score()
    assert isinstance(score_object, DesiredScore)
    assert (score_object.items, score_object.valid_until, score_object.name) == (
        (("a", 1), ("b", 2)),
        NOW + 290,
        "score",
    )
    assert desired_score(SCORE.model_copy(update={"valid_until": NOW})) is None
    assert desired_score(None) is UNKNOWN
    assert desired_score(destination="None") is None


def test_failing() -> None:
    keep = desired_score(failing=99)
    assert isinstance(keep, DesiredScore)
    assert keep.items == (("a", 1), ("b", 2))
    assert desired_score(failing=2, when_failing=FailingRule(failure_threshold=2, behavior="Remove")) is None
    assert desired_score(failing=1, when_failing=FailingRule(failure_threshold=2, behavior="Remove")) is not None
    value = desired_score(failing=2, when_failing=VALUE)
    assert isinstance(value, DesiredScore)
    assert (value.items, value.valid_until) == ((("a", -7), ("b", -7)), NOW + 300)
    never = desired_score(None, failing=2, when_failing=VALUE, dimension_formats=("${node}",))
    assert isinstance(never, DesiredScore)
    assert never.items == (("score", -7),)


def test_inactive_scoring_api_counts_as_failing() -> None:
    value = desired_score(failing=0, when_failing=VALUE, health="Inactive")
    assert isinstance(value, DesiredScore)
    assert value.items == (("a", -7), ("b", -7))
    keep = desired_score(failing=0, health="Inactive")
    assert isinstance(keep, DesiredScore)
    assert keep.items == (("a", 1), ("b", 2))


def test_score_of_a_suspended_scorer_expires() -> None:
    value = desired_score(failing=2, when_failing=VALUE, suspended=True, current_valid_until=NOW + 100)
    assert isinstance(value, DesiredScore)
    assert (value.items, value.valid_until) == ((("a", -7), ("b", -7)), NOW + 100)
    assert desired_score(failing=2, when_failing=VALUE, suspended=True, current_valid_until=NOW) is None
    assert desired_score(None, failing=2, when_failing=VALUE, suspended=True) is None
    # A suspended scorer does not need its scoring API.
    off = desired_score(when_failing=VALUE, suspended=True, health="Inactive")
    assert isinstance(off, DesiredScore)
    assert (off.items, off.valid_until) == ((("a", 1), ("b", 2)), NOW + 290)
    assert desired_score(None, when_failing=VALUE, suspended=True, health="Inactive") is UNKNOWN


def test_empty() -> None:
    empty = SCORE.model_copy(update={"items": []})
    plain = desired_score(empty)
    assert isinstance(plain, DesiredScore)
    assert plain.items == ()
    value = desired_score(
        empty, when_empty=EmptyRule(behavior="Value", value=5), dimension_formats=("of ${cluster}${node}",)
    )
    assert isinstance(value, DesiredScore)
    assert value.items == (("of c", 5),)


NAMED = EmptyRule(
    behavior="Value",
    items=[
        EmptyItem(name="${cluster};pod-a", value=-100),
        EmptyItem(name="${scoreName}", value=3),
        EmptyItem(name="c;pod-a", value=-90),
    ],
)


def test_empty_with_named_items() -> None:
    empty = SCORE.model_copy(update={"items": []})
    score_object = desired_score(empty, when_empty=NAMED, dimension_formats=("${node};${pod}",))
    assert isinstance(score_object, DesiredScore)
    # OCM rejects an object with two items of one name.
    assert score_object.items == (("c;pod-a", -90), ("score", 3))
    results = desired_score(when_empty=NAMED)
    assert isinstance(results, DesiredScore)
    assert results.items == (("a", 1), ("b", 2))


@pytest.mark.parametrize("score", [None, SCORE.model_copy(update={"items": []})], ids=["never", "empty"])
def test_failing_without_results_shows_its_value_under_the_names_of_the_empty_answer(score: PairScore | None) -> None:
    score_object = desired_score(
        score, failing=2, when_failing=VALUE, when_empty=NAMED, dimension_formats=("${node};${pod}",)
    )
    assert isinstance(score_object, DesiredScore)
    assert score_object.items == (("c;pod-a", -7), ("score", -7))


def test_factor_extends_failing_values_but_not_scores() -> None:
    score_object = desired_score(factor=3.0)
    assert isinstance(score_object, DesiredScore)
    assert score_object.valid_until == NOW + 290
    failing = desired_score(factor=3.0, failing=2, when_failing=VALUE)
    assert isinstance(failing, DesiredScore)
    assert failing.valid_until == NOW + 900


def test_digest_is_of_the_items_alone() -> None:
    first, later = desired_score(), desired_score(SCORE.model_copy(update={"valid_until": NOW + 900}))
    changed = desired_score(SCORE.model_copy(update={"items": [("a", 1), ("b", 3)]}))
    assert isinstance(first, DesiredScore)
    assert isinstance(later, DesiredScore)
    assert isinstance(changed, DesiredScore)
    assert first.digest == later.digest != changed.digest


@pytest.mark.parametrize(
    ("validities", "rate", "factor"),
    [
        ([], 50.0, 1.0),
        ([(100, 300)], 50.0, 1.0),
        # Renewing 35,000 objects every 150 s needs 233 writes a second; half of 50 are for renewals.
        ([(35_000, 300)], 50.0, 35_000 / 150 / 25),
        ([(3500, 300), (3500, 600)], 50.0, (3500 / 150 + 3500 / 300) / 25),
    ],
)
def test_validity_factor(validities: list, rate: float, factor: float) -> None:
    assert compute_validity_factor(validities, rate) == pytest.approx(factor)


@given(st.lists(st.tuples(st.integers(1, 10_000), st.integers(1, 100_000)), max_size=5), st.floats(0.1, 1000))
def test_with_the_factor_renewals_take_at_most_half_of_the_writes(validities: list, rate: float) -> None:
    factor = compute_validity_factor(validities, rate)
    assert factor >= 1
    assert sum(number / (seconds * factor / 2) for number, seconds in validities) <= rate / 2 * 1.000001
