"""Checks that the clusters of a plan exist and can be selected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dsf.kube.resources import MANAGED_CLUSTER_SETS, MANAGED_CLUSTERS
from dsf.optimizer.backend import ManifestClient
from dsf.optimizer.selector import COMPLIANCE_CLAIM, PlacementSelector, Selection
from dsf.placements.kinds import MANAGED_CLUSTER_SET_BINDINGS
from dsf.placements.scheduling import contains_cluster, read_claims

_AVAILABLE: Final = "ManagedClusterConditionAvailable"


class Clusters:
    """The ManagedClusters of one plan, read from the hub by the constructor, which raises BackendError."""

    def __init__(self, backend: ManifestClient, selector: PlacementSelector, names: Iterable[str]) -> None:
        self._backend = backend
        self._selector = selector
        requested_names = set(names)
        # With a selector by label, list only clusters with the label, because Placements cannot select the others.
        self._listed_clusters = backend.list_objects(MANAGED_CLUSTERS, labels=selector.labels)
        self._cluster_by_name = {
            str(cluster["metadata"]["name"]): cluster
            for cluster in self._listed_clusters
            if cluster["metadata"]["name"] in requested_names
        }
        self._cluster_by_name |= backend.fetch_objects(
            MANAGED_CLUSTERS, "", requested_names - self._cluster_by_name.keys()
        )

    def list_missing(self, names: Iterable[str]) -> list[str]:
        """Return an error text for each of these clusters that does not exist."""
        return [f"ManagedCluster {name} does not exist" for name in names if name not in self._cluster_by_name]

    def select(self, names: Iterable[str]) -> Selection:
        """Return the values by which Placements select these clusters."""
        return self._selector.select(names, self._listed_clusters)

    def list_unbound(self, namespace: str, names: Iterable[str]) -> list[str]:
        """Return a problem for each cluster that Placements of the namespace cannot select.

        Placements only select clusters of the cluster sets that are bound to their namespace.
        """
        cluster_names = sorted(set(names))
        if not cluster_names:
            return []
        bindings = self._backend.list_objects(MANAGED_CLUSTER_SET_BINDINGS, namespace)
        bound_sets = {
            str((binding.get("spec") or {}).get("clusterSet") or binding["metadata"]["name"]) for binding in bindings
        }
        if not bound_sets:
            reason = f"namespace {namespace} has no ManagedClusterSetBinding, so its Placements select nothing"
            return [f"{reason}; bind a set with these clusters, such as `global`"]
        sets = self._backend.fetch_objects(MANAGED_CLUSTER_SETS, "", bound_sets)
        return [
            f"ManagedCluster {name} is in no cluster set that is bound to namespace {namespace} "
            f"({', '.join(sorted(bound_sets))}), so its Placements cannot select it"
            for name in cluster_names
            if name in self._cluster_by_name
            and not any(contains_cluster(cluster_set, self._cluster_by_name[name]) for cluster_set in sets.values())
        ]

    def list_warnings(self, cluster_names: Iterable[str]) -> list[str]:
        """Return the reasons why an applied plan may not take effect on these clusters."""
        problems = []
        names = sorted(set(cluster_names) & self._cluster_by_name.keys())
        for name in names:
            cluster = self._cluster_by_name[name]
            problems += [
                f"ManagedCluster {name} has the taint {taint.get('key')}: Placements do not select it"
                for taint in (cluster.get("spec") or {}).get("taints") or ()
                if taint.get("effect") in ("NoSelect", "NoSelectIfNew")
            ]
            conditions = (cluster.get("status") or {}).get("conditions") or ()
            if any(
                condition.get("type") == _AVAILABLE and condition.get("status") != "True" for condition in conditions
            ):
                problems.append(f"ManagedCluster {name} is not available")
        problems += [
            f"ManagedCluster {name} has no claim {COMPLIANCE_CLAIM}: workloads are placed there only once it is "
            f"compliant; check that the policy watcher runs there"
            for name in names
            if COMPLIANCE_CLAIM not in read_claims(self._cluster_by_name[name])
        ]
        return problems
