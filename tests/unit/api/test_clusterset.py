"""Membership of clusters in ManagedClusterSets."""

from __future__ import annotations

from typing import Any

import pytest

from dsf.api.cluster import ManagedCluster, find_cluster_sets
from dsf.api.scoringauthentication import Override
from dsf.api.types import CLUSTER_SET_LABEL


def _set(name: str, **selector: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"clusterSelector": selector}}


#: As OCM makes the first two.
GLOBAL = _set("global", selectorType="LabelSelector", labelSelector={})
DEFAULT = _set("default", selectorType="ExclusiveClusterSetLabel")
EUROPE = _set("europe", selectorType="LabelSelector", labelSelector={"matchLabels": {"region": "eu"}})
LARGE = _set(
    "large",
    selectorType="LabelSelector",
    labelSelector={"matchExpressions": [{"key": "size", "operator": "In", "values": ["l", "xl"]}]},
)
NONE = _set("none", selectorType="LabelSelector")
ALL = [GLOBAL, DEFAULT, EUROPE, LARGE, NONE, {"metadata": {"name": "bare"}}]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, {"global"}),
        ({CLUSTER_SET_LABEL: "default"}, {"global", "default"}),
        ({CLUSTER_SET_LABEL: "bare"}, {"global", "bare"}),
        ({"region": "eu", "size": "xl"}, {"global", "europe", "large"}),
        # A set that selects by other labels ignores this one.
        ({CLUSTER_SET_LABEL: "europe"}, {"global"}),
        # The set is unknown, as in a folder of manifests.
        ({CLUSTER_SET_LABEL: "elsewhere"}, {"global", "elsewhere"}),
    ],
)
def test_sets_select_by_their_label_or_by_any(labels: dict[str, str], expected: set[str]) -> None:
    assert find_cluster_sets(labels, ALL) == expected


def test_sets_without_objects_have_the_clusters_with_their_label() -> None:
    assert find_cluster_sets({CLUSTER_SET_LABEL: "europe"}, []) == {"europe"}
    assert find_cluster_sets({}, []) == frozenset()


@pytest.mark.parametrize("name", ["global", "europe"])
def test_overrides_apply_to_sets_that_select_by_labels(name: str) -> None:
    override = Override.model_validate({"clusterSets": [name], "host": "https://x"})
    cluster = ManagedCluster.model_validate(
        {
            "apiVersion": "cluster.open-cluster-management.io/v1",
            "kind": "ManagedCluster",
            "metadata": {"name": "c", "labels": {"region": "eu"}},
        }
    )
    assert override.applies_to(cluster.make_facts(ALL))
    assert not override.applies_to(cluster.make_facts())


@pytest.mark.parametrize(
    "requirement",
    [
        {"operator": "Equals", "values": ["a"]},
        {"operator": "notin", "values": ["b"]},
        {"values": ["a"]},
        {"operator": "NotIn"},
        {"operator": "NotIn", "values": []},
        {"operator": "DoesNotExist", "values": ["b"]},
    ],
)
def test_set_with_an_invalid_requirement_has_no_clusters(requirement: dict[str, object]) -> None:
    """The API server accepts such sets, and OCM's controllers find no cluster of them."""
    selector = {"matchExpressions": [{"key": "site", **requirement}]}
    cluster_set = _set("s", selectorType="LabelSelector", labelSelector=selector)
    assert not find_cluster_sets({"other": "x"}, [cluster_set])
