"""The ManifestWork that brings a cluster's scorers to its agent. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dsf.api.summary import ScorerSummary, dump_summaries
from dsf.api.types import CONFIGMAP_NAME, MANAGED_BY, MANAGED_BY_LABEL, MANIFESTWORK_NAME, SUMMARIES_KEY
from dsf.hub.backend import Kind, Manifest

_WORK_API_VERSION = "work.open-cluster-management.io/v1"


def manifest_work(cluster: str, agent_namespace: str, summaries: Iterable[ScorerSummary]) -> Manifest:
    """The ManifestWork with the ConfigMap that the cluster's agent reads."""
    labels = {MANAGED_BY_LABEL: MANAGED_BY}
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIGMAP_NAME, "namespace": agent_namespace, "labels": labels},
        "data": {SUMMARIES_KEY: dump_summaries(summaries)},
    }
    return {
        "apiVersion": _WORK_API_VERSION,
        "kind": Kind.WORK.value,
        "metadata": {"name": MANIFESTWORK_NAME, "namespace": cluster, "labels": labels},
        "spec": {"workload": {"manifests": [config_map]}},
    }


def covers(actual: Any, wanted: Any) -> bool:
    """Whether all of `wanted` is in `actual`, which may have more fields: other people's, and an API server's defaults.

    Lists must have equal lengths.
    """
    if isinstance(wanted, dict):
        return isinstance(actual, dict) and all(
            name in actual and covers(actual[name], value) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(wanted)
            and all(covers(one, other) for one, other in zip(actual, wanted, strict=True))
        )
    return bool(actual == wanted)


def is_applied(work: Manifest) -> bool:
    """Whether OCM's work agent has brought this very generation to the managed cluster."""
    generation = work["metadata"].get("generation", 0)
    return any(
        condition.get("type") == "Applied"
        and condition.get("status") == "True"
        and condition.get("observedGeneration", 0) >= generation
        for condition in (work.get("status") or {}).get("conditions") or []
    )
