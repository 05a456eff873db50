"""Which ManagedClusterSets a cluster is in, as OCM decides it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dsf.api.selector import matches
from dsf.api.types import CLUSTER_SET_LABEL


def has_cluster(cluster_set: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a ManagedClusterSet has a cluster with these labels."""
    selector = (cluster_set.get("spec") or {}).get("clusterSelector") or {}
    if selector.get("selectorType") == "LabelSelector":
        # A missing selector selects nothing, an empty one everything.
        return selector.get("labelSelector") is not None and matches(selector["labelSelector"], labels)
    return bool(labels.get(CLUSTER_SET_LABEL) == cluster_set["metadata"]["name"])


def sets_of(labels: Mapping[str, str], cluster_sets: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Names of the sets of a cluster with these labels.

    A set that is not in `cluster_sets` has the clusters with its label: a folder of manifests has no sets.
    """
    by_name = {cluster_set["metadata"]["name"]: cluster_set for cluster_set in cluster_sets}
    names = {name for name, cluster_set in by_name.items() if has_cluster(cluster_set, labels)}
    labelled = labels.get(CLUSTER_SET_LABEL)
    return frozenset(names | ({labelled} if labelled and labelled not in by_name else set()))
