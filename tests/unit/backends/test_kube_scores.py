"""What of a status must be taken away because nobody wants it."""

from __future__ import annotations

from typing import Any

import pytest

from dsf.backends.kube_scores import _surplus

A, B = {"name": "a", "value": 1}, {"name": "b", "value": 2}


@pytest.mark.parametrize(
    ("actual", "wanted", "patch"),
    [
        ({}, {}, {}),
        ({"x": 1}, {"x": 1}, {}),
        ({"x": 1}, {"x": 2}, {}),
        ({}, {"x": 1}, {}),
        ({"x": 1, "y": 2}, {"x": 1}, {"y": None}),
        ({"x": {"y": 1, "z": 2}}, {"x": {"y": 1}}, {"x": {"z": None}}),
        ({"x": {"y": 1}}, {"x": {"y": 1}}, {}),
        ({"scores": [A, B]}, {"scores": [A]}, {"scores": [A]}),
        ({"scores": [B, A]}, {"scores": [A, B]}, {}),
        ({"scores": [{**A, "more": 1}]}, {"scores": [A]}, {"scores": [A]}),
        ({"scores": [A]}, {"scores": [A, B]}, {}),
        ({"scores": []}, {"scores": []}, {}),
    ],
)
def test_surplus(actual: dict[str, Any], wanted: dict[str, Any], patch: dict[str, Any]) -> None:
    assert _surplus(actual, wanted) == patch
