"""The ManifestWork that brings a cluster's scorers to its agent. Pure functions."""

from __future__ import annotations

from dsf.api.types import CONFIGMAP_NAME, MANAGED_BY, MANAGED_BY_LABEL, MANIFESTWORK_NAME, SUMMARIES_KEY
from dsf.backends.protocol import Kind, Manifest

_WORK_API_VERSION = "work.open-cluster-management.io/v1"


def manifest_work(cluster: str, agent_namespace: str, summaries: str) -> Manifest:
    """The ManifestWork with the ConfigMap that the cluster's agent reads. `summaries` are from `dump_summaries`."""
    labels = {MANAGED_BY_LABEL: MANAGED_BY}
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIGMAP_NAME, "namespace": agent_namespace, "labels": labels},
        "data": {SUMMARIES_KEY: summaries},
    }
    return {
        "apiVersion": _WORK_API_VERSION,
        "kind": Kind.WORK.value,
        "metadata": {"name": MANIFESTWORK_NAME, "namespace": cluster, "labels": labels},
        "spec": {"workload": {"manifests": [config_map]}},
    }


def is_applied(work: Manifest) -> bool:
    """Whether OCM's work agent has brought this very generation to the managed cluster."""
    generation = work["metadata"].get("generation", 0)
    return any(
        condition.get("type") == "Applied"
        and condition.get("status") == "True"
        and condition.get("observedGeneration", 0) >= generation
        for condition in (work.get("status") or {}).get("conditions") or []
    )
