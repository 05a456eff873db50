"""Whether an object is as it is wanted."""

from __future__ import annotations

from typing import Any

import pytest

from dsf.backends.compare import covers


@pytest.mark.parametrize(
    ("actual", "wanted", "expected"),
    [
        # Other managers' fields, and defaults of the API server.
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
def test_covers_compares_the_wanted_part(actual: Any, wanted: Any, expected: bool) -> None:
    assert covers(actual, wanted) is expected
