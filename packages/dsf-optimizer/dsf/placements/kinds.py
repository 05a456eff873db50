"""The kinds of OCM objects that only the optimiser and the explanations of Placements use."""

from __future__ import annotations

from dsf.kube.resources import Resource

PLACEMENT_DECISIONS = Resource(
    "cluster.open-cluster-management.io", "v1beta1", "placementdecisions", "PlacementDecision"
)
MANAGED_CLUSTER_SET_BINDINGS = Resource(
    "cluster.open-cluster-management.io", "v1beta2", "managedclustersetbindings", "ManagedClusterSetBinding"
)
MANIFEST_WORK_REPLICA_SETS = Resource(
    "work.open-cluster-management.io", "v1alpha1", "manifestworkreplicasets", "ManifestWorkReplicaSet"
)
POLICIES = Resource("policy.open-cluster-management.io", "v1", "policies", "Policy")
PLACEMENT_BINDINGS = Resource("policy.open-cluster-management.io", "v1", "placementbindings", "PlacementBinding")
