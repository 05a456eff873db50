"""Scorers for the tests, built from manifests as a user writes them."""

from __future__ import annotations

from typing import Any

from dsf.api.scorer import DynamicScorer

CONFIG_URL = "http://10.0.0.5:30007/config"
PROMETHEUS = "http://prometheus.monitoring.svc:9090"
QUERY = 'sum by (node, namespace, pod) (rate(container_cpu_usage_seconds_total{container!="", pod!=""}[5m]))'

SPEC: dict[str, Any] = {
    "description": "Mean of each series",
    "configURL": CONFIG_URL,
    "configSyncMode": "Full",
    "scoreDimensionFormat": "${node};${namespace};${pod}",
    "source": {"host": PROMETHEUS, "path": "/api/v1/query_range"},
    "scoring": {"path": "/scoring"},
}
SYNCED: dict[str, Any] = {
    "name": "sample-scorer",
    "description": "Mean of each series",
    "source": {
        "type": "Prometheus",
        "host": PROMETHEUS,
        "path": "/api/v1/query_range",
        "params": {"query": QUERY, "range": 3600, "step": 60},
    },
    "scoring": {"path": "/scoring", "params": {"name": "sample_my_score", "interval": 30}},
}


def manifest(spec: dict[str, Any] | None = None, *, name: str = "sample-scorer", **fields: Any) -> dict[str, Any]:
    """Return a DynamicScorer's manifest with the spec `spec`, or a default one."""
    return {
        "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
        "kind": "DynamicScorer",
        "metadata": {"name": name, "namespace": "open-cluster-management", **fields.pop("metadata", {})},
        "spec": SPEC if spec is None else spec,
        **fields,
    }


def scorer(spec: dict[str, Any] | None = None, synced: dict[str, Any] | None = None, **metadata: Any) -> DynamicScorer:
    """Return a scorer whose defaults `spec` overrides, with `synced` as its last `/config` document."""
    status = {"healthStatus": "Active", **({"lastSyncedConfig": synced} if synced is not None else {})}
    return DynamicScorer.from_manifest(manifest({**SPEC, **(spec or {})}, metadata=metadata, status=status))


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `base` with values changed at dotted paths; None removes the field."""
    result: dict[str, Any] = {
        key: merged(value, {}) if isinstance(value, dict) else value for key, value in base.items()
    }
    for path, value in changes.items():
        *parents, last = path.split(".")
        target = result
        for parent in parents:
            target = target.setdefault(parent, {})
        if value is None:
            target.pop(last, None)
        else:
            target[last] = value
    return result
