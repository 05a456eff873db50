"""The kinds of objects that this project reads or writes, with their REST paths."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True)
class Resource:
    """A kind of objects on the API server."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The `apiVersion` of the kind: `group/version`, or `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the REST path of a collection, in all namespaces without `namespace`, or of the object `name`."""
        prefix = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [prefix]
        if self.namespaced and namespace:
            parts.append(f"namespaces/{quote(namespace, safe='')}")
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


_GROUP_AND_VERSION = ("dynamic-scoring.open-cluster-management.io", "v1alpha1")

DYNAMIC_SCORERS = Resource(*_GROUP_AND_VERSION, "dynamicscorers", "DynamicScorer")
DYNAMIC_SCORING_CONFIGS = Resource(*_GROUP_AND_VERSION, "dynamicscoringconfigs", "DynamicScoringConfig")
SCORING_AUTHENTICATIONS = Resource(*_GROUP_AND_VERSION, "scoringauthentications", "ScoringAuthentication")
MANAGED_CLUSTERS = Resource(
    "cluster.open-cluster-management.io", "v1", "managedclusters", "ManagedCluster", namespaced=False
)
MANAGED_CLUSTER_SETS = Resource(
    "cluster.open-cluster-management.io", "v1beta2", "managedclustersets", "ManagedClusterSet", namespaced=False
)
ADDON_PLACEMENT_SCORES = Resource(
    "cluster.open-cluster-management.io", "v1alpha1", "addonplacementscores", "AddOnPlacementScore"
)
MANIFEST_WORKS = Resource("work.open-cluster-management.io", "v1", "manifestworks", "ManifestWork")
MANAGED_CLUSTER_ADDONS = Resource(
    "addon.open-cluster-management.io", "v1alpha1", "managedclusteraddons", "ManagedClusterAddOn"
)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
SERVICES = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
PODS = Resource("", "v1", "pods", "Pod")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
PLACEMENTS = Resource("cluster.open-cluster-management.io", "v1beta1", "placements", "Placement")
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
