from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.api.score import (
    MAX_OBJECT_BYTES,
    MAX_RENDERED,
    DimensionFormat,
    build_items,
    estimate_object_bytes,
    make_score_body,
    make_score_status,
    to_score_value,
)
from dsf.api.scoringresponse import ScoringResult
from dsf.errors import ScoreObjectTooLargeError
from tests.cases import load

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("case", load("items"))
def test_items(case: dict[str, Any]) -> None:
    results = [ScoringResult(labels, score) for labels, score in case["results"]]
    items = build_items(results, case["format"], "cluster1", "my_score")
    assert [list(item) for item in items.items] == case["expected"]
    assert items.clamped == case.get("clamped", 0)
    assert items.duplicates == case.get("duplicates", 0)
    assert items.refusal_counts == case.get("refused", {})


@pytest.mark.parametrize(("score", "reason"), [(math.nan, "nan"), (math.inf, "infinite"), (-math.inf, "infinite")])
def test_non_finite_score_makes_no_item(score: float, reason: str) -> None:
    items = build_items([ScoringResult({"node": "a"}, 1.0), ScoringResult({"node": "a"}, score)], "${node}", "c", "s")
    assert items.items == (("a", 1),)
    assert items.refusal_counts == {reason: 1}


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_non_finite_score_has_no_value(score: float) -> None:
    with pytest.raises(ValueError, match=f"^{score} is not a score$"):
        to_score_value(score)


@given(FINITE)
def test_score_value_is_the_floor_clamped_to_the_bounds(score: float) -> None:
    floor = math.floor(score)
    assert to_score_value(score) == (min(max(floor, -100), 100), not -100 <= floor <= 100)


RESULTS = st.lists(
    st.builds(ScoringResult, st.dictionaries(st.sampled_from(["node", "pod"]), st.sampled_from("ab")), FINITE)
)


@given(RESULTS)
def test_names_are_unique_and_every_result_is_accounted_for(results: list[ScoringResult]) -> None:
    items = build_items(results, "${node}", "c", "s")
    assert len({name for name, _ in items.items}) == len(items.items)
    assert len(items.items) + items.duplicates + items.refusal_counts.total() == len(results)


def test_score_object_one_byte_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"pod-{n:04}" for n in range(100)]
    results = [ScoringResult({"pod": name}, 1.0) for name in names]
    size = estimate_object_bytes(names)
    monkeypatch.setattr("dsf.api.score.MAX_OBJECT_BYTES", size)
    assert len(build_items(results, "${pod}", "c", "s").items) == 100
    monkeypatch.setattr("dsf.api.score.MAX_OBJECT_BYTES", size - 1)
    with pytest.raises(ScoreObjectTooLargeError):
        build_items(results, "${pod}", "c", "s")


def test_too_many_items_for_one_object() -> None:
    names = [f"{n:04}-{'x' * 400}" for n in range(1200)]
    results = [ScoringResult({"pod": name}, 1.0) for name in names]
    assert len(build_items(results[:1000], "${pod}", "c", "s").items) == 1000
    size = estimate_object_bytes(names)
    with pytest.raises(ScoreObjectTooLargeError) as raised:
        build_items(results, "${pod}", "c", "s")
    assert str(raised.value) == (
        f"1200 score items make an AddOnPlacementScore of {size} bytes, more than the {MAX_OBJECT_BYTES} that "
        "one object may have; use a scoreDimensionFormat with fewer or shorter names"
    )


@pytest.mark.parametrize(
    ("results", "fmt", "problem"),
    [
        pytest.param([{"node": "x" * 1_900_000}], "${node}" * 2000, "a name of 3800000000 characters", id="one-name"),
        pytest.param([{"node": f"{n:0900}"} for n in range(2000)], "${node}" * 140, "500000 characters", id="names"),
        pytest.param([{"node": "x" * 900}] * 10_000, "${node}" * 140, "32000000 characters", id="duplicates"),
        pytest.param([{"pod": "x"}] * 10_000, "${node}" * 2000, "32000000 characters", id="placeholders"),
    ],
)
def test_item_names_are_not_rendered_beyond_one_object(
    results: list[dict[str, str]], fmt: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = 0
    render = DimensionFormat.render

    def count(self: DimensionFormat, labels: Mapping[str, str]) -> str:
        nonlocal rendered
        assert self.compute_length(labels) <= MAX_OBJECT_BYTES
        name = render(self, labels)
        rendered += len(name)
        return name

    monkeypatch.setattr(DimensionFormat, "render", count)
    with pytest.raises(ScoreObjectTooLargeError, match=problem):
        build_items(
            [(labels, 1.0) for labels in results], fmt, "c", "s", further_formats=[f"{fmt}{n}" for n in range(8)]
        )
    assert rendered <= MAX_RENDERED


def test_object_size_counts_bytes_escapes_and_managed_fields() -> None:
    plain = estimate_object_bytes(["abc"]) - estimate_object_bytes([])
    # Each item counts as `{"name":"abc","value":-100},` and once more in managedFields.
    assert plain >= len('{"name":"abc","value":-100},') + len(
        r'"k:{\"name\":\"abc\"}":{".":{},"f:name":{},"f:value":{}},'
    )
    assert estimate_object_bytes(["日本語"]) - estimate_object_bytes(["abc"]) == 12
    assert estimate_object_bytes(['"bc']) - estimate_object_bytes(["abc"]) >= 4
    assert (
        estimate_object_bytes([f"pod-{n}" for n in range(4000)])
        < MAX_OBJECT_BYTES
        < estimate_object_bytes(["x" * 100] * 4000)
    )


def test_score_body_has_labels_and_owner() -> None:
    assert make_score_body("cluster1", "sample-scorer", "My Score", owner_uid="u-1") == {
        "apiVersion": "cluster.open-cluster-management.io/v1alpha1",
        "kind": "AddOnPlacementScore",
        "metadata": {
            "name": "my-score",
            "namespace": "cluster1",
            "labels": {
                "app.kubernetes.io/managed-by": "dynamic-scoring-framework",
                "dynamic-scoring.open-cluster-management.io/scorer-name": "sample-scorer",
            },
            "ownerReferences": [
                {
                    "apiVersion": "cluster.open-cluster-management.io/v1",
                    "kind": "ManagedCluster",
                    "name": "cluster1",
                    "uid": "u-1",
                }
            ],
        },
    }
    assert "ownerReferences" not in make_score_body("cluster1", "sample-scorer", "My Score")["metadata"]


def test_score_status_has_items_expiry_and_condition() -> None:
    items = [("a", 1), ("b", -100)]
    until = NOW + timedelta(seconds=300.5)
    assert make_score_status(items, valid_until=until, now=NOW) == {
        "conditions": [
            {
                "type": "AddOnPlacementScoreUpdated",
                "status": "True",
                "reason": "AddOnPlacementScoreUpdated",
                "message": "2 score items are up to date",
                "lastTransitionTime": "2026-01-01T12:00:00Z",
            }
        ],
        "scores": [{"name": "a", "value": 1}, {"name": "b", "value": -100}],
        "validUntil": "2026-01-01T12:05:00Z",
    }


def test_several_formats_make_an_item_of_each_result_for_each() -> None:
    results = [
        ScoringResult({"node": "n1", "pod": "a"}, 10),
        ScoringResult({"node": "n1", "pod": "b"}, 20),
        ScoringResult({"node": "b"}, 30),
    ]
    built_items = build_items(results, "${node}", "c", "s", further_formats=("${pod}", "all"))
    # n1 has the later result. b has the earlier format: a node there has the name of a pod in the next format.
    assert built_items.items == (("n1", 20), ("b", 30), ("a", 10), ("all", 30))
    assert (built_items.duplicates, sum(built_items.refusal_counts.values())) == (4, 0)
    assert build_items([ScoringResult({}, 1)], "${node}", "c", "s", further_formats=("${pod}",)).refusal_counts == {
        "empty_dimension": 1
    }
    assert build_items([ScoringResult({"pod": "p"}, 1)], "${node}", "c", "s", further_formats=("${pod}",)).items == (
        ("p", 1),
    )
