"""Selection of clusters by labels."""

from __future__ import annotations

from typing import Any

import pytest

from dsf.api.selector import ClusterSelector


@pytest.mark.parametrize(
    ("requirement", "selected"),
    [
        ({"operator": "In", "values": ["eu", "us"]}, ["eu"]),
        # Selects clusters without the label too, as in Kubernetes.
        ({"operator": "NotIn", "values": ["eu", "us"]}, ["asia", "none"]),
        ({"operator": "Exists"}, ["eu", "asia"]),
        ({"operator": "DoesNotExist"}, ["none"]),
    ],
)
def test_each_operator(requirement: dict[str, Any], selected: list[str]) -> None:
    selector = ClusterSelector.model_validate({"matchExpressions": [{"key": "region"} | requirement]})
    clusters = {"eu": {"region": "eu"}, "asia": {"region": "asia"}, "none": {}}
    assert [name for name, labels in clusters.items() if selector.matches(labels)] == selected


def test_all_requirements_of_a_selector_must_match() -> None:
    selector = ClusterSelector.model_validate(
        {"matchLabels": {"a": "1", "b": "2"}, "matchExpressions": [{"key": "c", "operator": "Exists"}]}
    )
    assert selector.matches({"a": "1", "b": "2", "c": ""})
    assert not selector.matches({"a": "1", "b": "2"})
    assert not selector.matches({"a": "1", "b": "other", "c": ""})
