"""Model of the used part of OCM's `ManagedCluster`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field

from dsf.api.clusterset import sets_of
from dsf.api.meta import ApiModel, KubernetesObject, StatusModel
from dsf.api.scoringauthentication import ClusterFacts
from dsf.api.types import CLUSTER_API_VERSION, CLUSTER_KIND


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
        """Whether scorers run there: the hub accepted it and it is not being deleted."""
        return self.spec.hub_accepts_client and self.metadata.deletion_timestamp is None

    def facts(self, cluster_sets: Iterable[Mapping[str, Any]] = ()) -> ClusterFacts:
        """Properties for templates and selectors; `cluster_sets` are all ManagedClusterSets."""
        claims = {claim.name: claim.value for claim in self.status.cluster_claims}
        labels = self.metadata.labels
        return ClusterFacts(self.metadata.name, labels, claims, sets_of(labels, cluster_sets))
