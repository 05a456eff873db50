"""Comparison of objects with their desired fields."""

from __future__ import annotations

from typing import Any

import pytest

from dsf.backends.compare import covers


@pytest.mark.parametrize(
    ("actual", "desired", "expected"),
    [
        # Fields of other managers and defaults of the API server are ignored.
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 2}}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {"b": None}, False),
        ({"a": "text"}, {"a": {"b": 1}}, False),
        ([{"name": "x", "more": 1}], [{"name": "x"}], True),
        ([1, 2], [1], False),
        ([1], [1, 2], False),
        ([], [], True),
        ({"a": [{"x": 1, "y": 2}]}, {"a": [{"x": 1}]}, True),
        ({}, {"a": 1}, False),
        (None, {"a": 1}, False),
        ("text", ["text"], False),
    ],
)
def test_covers_compares_only_the_desired_fields(actual: Any, desired: Any, expected: bool) -> None:
    assert covers(actual, desired) is expected
