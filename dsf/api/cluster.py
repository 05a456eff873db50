"""Model of the used part of OCM's `ManagedCluster`, and of a cluster's ManagedClusterSets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field

from dsf.api.meta import ApiModel, KubernetesObject, StatusModel
from dsf.api.scoringauthentication import ClusterFacts
from dsf.api.selector import matches_selector
from dsf.api.types import CLUSTER_API_VERSION, CLUSTER_KIND, CLUSTER_SET_LABEL


def has_cluster(cluster_set: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return True if a ManagedClusterSet (as a manifest) contains a cluster with these labels."""
    selector = (cluster_set.get("spec") or {}).get("clusterSelector") or {}
    if selector.get("selectorType") == "LabelSelector":
        # A missing selector selects no cluster, and an empty one selects all.
        return selector.get("labelSelector") is not None and matches_selector(selector["labelSelector"], labels)
    return bool(labels.get(CLUSTER_SET_LABEL) == cluster_set["metadata"]["name"])


def find_cluster_sets(labels: Mapping[str, str], cluster_sets: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of the ManagedClusterSets of a cluster with these labels.

    The label alone decides for a set that is not in `cluster_sets`, because a folder of manifests has no sets.
    """
    set_by_name = {cluster_set["metadata"]["name"]: cluster_set for cluster_set in cluster_sets}
    names = {name for name, cluster_set in set_by_name.items() if has_cluster(cluster_set, labels)}
    labelled_set = labels.get(CLUSTER_SET_LABEL)
    return frozenset(names | ({labelled_set} if labelled_set and labelled_set not in set_by_name else set()))


class ClusterClaim(ApiModel):
    """A property that a managed cluster reports."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    value: str = ""


class ManagedClusterSpec(ApiModel):
    """Decisions of the hub's administrator."""

    model_config = ConfigDict(extra="ignore")

    hub_accepts_client: bool = False


class ManagedClusterStatus(StatusModel):
    """Report of the managed cluster."""

    cluster_claims: list[ClusterClaim] = Field(default_factory=list)


class ManagedCluster(KubernetesObject):
    """A cluster that OCM manages; fields that are not used are ignored."""

    model_config = ConfigDict(extra="ignore")

    api_version: Literal["cluster.open-cluster-management.io/v1"] = CLUSTER_API_VERSION
    kind: Literal["ManagedCluster"] = CLUSTER_KIND
    spec: ManagedClusterSpec = Field(default_factory=ManagedClusterSpec)
    status: ManagedClusterStatus = Field(default_factory=ManagedClusterStatus)

    @property
    def is_served(self) -> bool:
        """True if scorers may run on the cluster, which the hub has accepted and which is not being deleted."""
        return self.spec.hub_accepts_client and self.metadata.deletion_timestamp is None

    def make_facts(self, cluster_sets: Iterable[Mapping[str, Any]] = ()) -> ClusterFacts:
        """Return the properties for templates and selectors; `cluster_sets` are the manifests of all sets."""
        claims = {claim.name: claim.value for claim in self.status.cluster_claims}
        labels = self.metadata.labels
        return ClusterFacts(self.metadata.name, labels, claims, find_cluster_sets(labels, cluster_sets))
