"""A namespace of the walk-through on a real API server: two clusters, six policies, two workloads, two scores."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

from dsf.errors import ObjectConflictError
from dsf.kube.resources import ADDON_PLACEMENT_SCORES, MANAGED_CLUSTER_SETS, MANAGED_CLUSTERS, PLACEMENTS
from dsf.kube.session import Session
from dsf.optimizer.backend import Manifest, ManifestClient
from dsf.optimizer.params import OptimizeParams
from dsf.optimizer.selector import PlacementSelector
from dsf.optimizer.service import OptimizerService
from dsf.optimizer.solver import SolverProcess
from dsf.placements.kinds import (
    MANAGED_CLUSTER_SET_BINDINGS,
    MANIFEST_WORK_REPLICA_SETS,
    PLACEMENT_BINDINGS,
    POLICIES,
)
from tests.support.controlplane import ControlPlane

from ...unit.optimizer import upstream

PERFORMANCE, POWER = "example-performance-score", "example-powerconsumption-score"
LABEL = "cluster-name"


class OptimizerHarness:
    """Objects of one test. Names of clusters are the test's own: everybody sees them."""

    def __init__(self, plane: ControlPlane, solver: SolverProcess) -> None:
        self.plane = plane
        self.session: Session = plane.session()
        self.solver = solver
        self.namespace = plane.namespace("plans")
        self.clusters = [plane.cluster("c"), plane.cluster("c")]
        self._bind_all()
        for name in self.clusters:
            self.label(name, LABEL, name)
        for manifest in upstream.workloads():
            self._create(
                MANIFEST_WORK_REPLICA_SETS, manifest, {"manifestWorkTemplate": {"workload": {"manifests": []}}}
            )
        for old, manifests in upstream.policies().items():
            for manifest in manifests:
                new = self.clusters[upstream.CLUSTERS.index(old)]
                manifest["metadata"]["name"] = manifest["metadata"]["name"].replace(old, new)
                self._create(POLICIES, manifest, {"policy-templates": []})
        self.score(PERFORMANCE, upstream.PERFORMANCE)
        self.score(POWER, upstream.POWER)

    def service(self, backend: Any = None, selector: str = f"label:{LABEL}", **options: Any) -> OptimizerService:
        """Return a service over the API server as admin, or over another backend."""
        return OptimizerService(
            backend or ManifestClient(self.session), self.solver, PlacementSelector.parse(selector), **options
        )

    def policy(self, setting: str, cluster: int) -> str:
        """Name of a policy: `enable-mig-3g`, and which cluster."""
        return f"policy-{setting}-{self.clusters[cluster]}"

    def params(self, score: str = PERFORMANCE, **fields: Any) -> OptimizeParams:
        """Return a request for all of it."""
        return OptimizeParams.model_validate(self.body(score, **fields))

    def body(self, score: str = PERFORMANCE, **fields: Any) -> dict[str, Any]:
        """Return the same body as it is sent."""
        return {
            "namespace": self.namespace,
            "clusters": [
                {
                    "name": name,
                    "availablePolicies": [{"name": self.policy(setting, index)} for setting, _, _ in upstream.POLICIES],
                }
                for index, name in enumerate(self.clusters)
            ],
            "targetWorkloads": [{"name": "mwrs-app01"}, {"name": "mwrs-app02"}],
            "preference": {"addOnPlacementScore": score, "scoreDimensionFormat": "${app};${device}"},
        } | fields

    def score(self, name: str, values: dict[str, tuple[int, int]], *, valid: float = 600) -> None:
        """Write a score of every cluster; it expires in so many seconds."""
        valid_until = (datetime.now(UTC) + timedelta(seconds=valid)).isoformat()
        for cluster, manifest in zip(self.clusters, upstream.scores(name, values, valid_until), strict=True):
            manifest["metadata"]["namespace"] = cluster
            with contextlib.suppress(ObjectConflictError):
                self.session.create(ADDON_PLACEMENT_SCORES.path(cluster), manifest)
            self.session.merge(ADDON_PLACEMENT_SCORES.path(cluster, name, "status"), {"status": manifest["status"]})

    def label(self, cluster: str, key: str, value: str | None) -> None:
        """Label a ManagedCluster, or with None remove the label."""
        self.session.merge(MANAGED_CLUSTERS.path(name=cluster), {"metadata": {"labels": {key: value}}})

    def claims(self, cluster: str, **claims: str) -> None:
        """Set the ClusterClaims of a ManagedCluster; `_` stands for `-`."""
        cluster_claims = [{"name": name.replace("_", "-"), "value": value} for name, value in claims.items()]
        self.session.merge(MANAGED_CLUSTERS.path("", cluster, "status"), {"status": {"clusterClaims": cluster_claims}})

    def objects(self) -> dict[tuple[str, str], Manifest]:
        """Return every Placement and PlacementBinding of the namespace, without what the API server adds."""
        objects = {}
        for resource in (PLACEMENTS, PLACEMENT_BINDINGS):
            for item in self.session.get(resource.path(self.namespace))["items"]:
                metadata = {key: item["metadata"].get(key) for key in ("name", "namespace", "labels", "annotations")}
                content = {key: value for key, value in item.items() if key not in ("metadata", "status")}
                objects[resource.kind, item["metadata"]["name"]] = {"metadata": metadata, **content}
        return objects

    def versions(self) -> dict[str, str]:
        """resourceVersion by uid."""
        return {
            item["metadata"]["uid"]: item["metadata"]["resourceVersion"]
            for resource in (PLACEMENTS, PLACEMENT_BINDINGS)
            for item in self.session.get(resource.path(self.namespace))["items"]
        }

    def bound(self) -> list[str]:
        """Return the policies that are bound."""
        items = self.session.get(PLACEMENT_BINDINGS.path(self.namespace))["items"]
        return sorted(subject["name"] for binding in items for subject in binding["subjects"])

    def close(self) -> None:
        """Remove the clusters and their scores, so that later tests do not see them."""
        for name in self.clusters:
            self.session.delete(ADDON_PLACEMENT_SCORES.path(name))
            self.session.delete(MANAGED_CLUSTERS.path(name=name))
        self.session.close()

    def _create(self, resource: Any, manifest: Manifest, spec: dict[str, Any]) -> None:
        manifest["metadata"]["namespace"] = self.namespace
        manifest["spec"] |= spec
        self.session.create(resource.path(self.namespace), manifest)

    def _bind_all(self) -> None:
        global_set = {
            "apiVersion": MANAGED_CLUSTER_SETS.api_version,
            "kind": MANAGED_CLUSTER_SETS.kind,
            "metadata": {"name": "global"},
            "spec": {"clusterSelector": {"selectorType": "LabelSelector", "labelSelector": {}}},
        }
        with contextlib.suppress(ObjectConflictError):
            self.session.create(MANAGED_CLUSTER_SETS.path(), global_set)
        binding = {
            "apiVersion": MANAGED_CLUSTER_SET_BINDINGS.api_version,
            "kind": MANAGED_CLUSTER_SET_BINDINGS.kind,
            "metadata": {"name": "global", "namespace": self.namespace},
            "spec": {"clusterSet": "global"},
        }
        self.session.create(MANAGED_CLUSTER_SET_BINDINGS.path(self.namespace), binding)
