"""Manifests for the tests, as a user or the hub writes them."""

from __future__ import annotations

import time
from typing import Any

from dsf.api.types import API_VERSION, OTHER_NAMESPACE

_NOW = "2026-01-01T00:00:00Z"

CONFIG_URL = "http://sample-scorer.dynamic-scoring.svc:8000/config"


def scorer(namespace: str, name: str = "sample", **spec: Any) -> dict[str, Any]:
    """Return a DynamicScorer with the required fields and those of `spec`.

    A value of None removes a field.
    """
    whole = {"description": "A sample", "configURL": CONFIG_URL, "configSyncMode": "Full", **spec}
    return {
        "apiVersion": API_VERSION,
        "kind": "DynamicScorer",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {field: value for field, value in whole.items() if value is not None},
    }


def ignored(manifest: dict[str, Any], reason: str = OTHER_NAMESPACE) -> dict[str, Any]:
    """Return a DynamicScorer with the condition by which the hub ignores it."""
    condition = {"type": "Ready", "status": "False", "reason": reason, "message": "", "lastTransitionTime": _NOW}
    return {**manifest, "status": {"conditions": [condition]}}


def config(namespace: str, **spec: Any) -> dict[str, Any]:
    """Return a DynamicScoringConfig."""
    return {
        "apiVersion": API_VERSION,
        "kind": "DynamicScoringConfig",
        "metadata": {"name": "dynamic-scoring-config", "namespace": namespace},
        "spec": spec,
    }


def applied(generation: int) -> dict[str, Any]:
    """Return the condition that OCM's work agent sets after it has applied this generation of a ManifestWork."""
    return {
        "type": "Applied",
        "status": "True",
        "reason": "AppliedManifestWorkComplete",
        "message": "",
        "observedGeneration": generation,
        "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
