"""The share of each namespace in the bytes for scores."""

from __future__ import annotations

import pytest

from dsf.hub.registrar import DEFAULT_MEMORY_BYTES, compute_score_limits


@pytest.mark.parametrize(
    ("namespaces", "limits"),
    [
        ([], {}),
        (["hub", "hub"], {"hub": 500}),
        (["a"], {"a": 500}),
        (["hub", "a"], {"hub": 250, "a": 250}),
        (["hub", "a", "b", "b"], {"hub": 250, "a": 125, "b": 125}),
        (["a", "b"], {"a": 250, "b": 250}),
    ],
)
def test_hubs_own_namespace_has_half_and_others_equal_parts(namespaces: list[str], limits: dict[str, int]) -> None:
    assert compute_score_limits(namespaces, "hub", 1000) == limits


def test_redis_without_a_limit_counts_as_the_charts() -> None:
    assert compute_score_limits(["hub"], "hub", 0) == {"hub": DEFAULT_MEMORY_BYTES // 2}
