"""Objects on the hub as the upstream project's manager and agent leave them, for tests of the migration.

Observed with upstream's commit 8fc014d on an API server: its manager puts a finalizer on each DynamicScoringConfig
named `dynamic-scoring-config` in any namespace, and makes one ManifestWork per cluster, without labels; its agent
writes AddOnPlacementScores without labels, owner and validUntil.
"""

from __future__ import annotations

import json
from typing import Any

from dsf.api.types import AGENT_NAMESPACE, CONFIGMAP_NAME, MANIFESTWORK_NAME, UPSTREAM_FINALIZER
from dsf.kube.resources import ADDON_PLACEMENT_SCORES, DYNAMIC_SCORING_CONFIGS, MANIFEST_WORKS
from dsf.kube.session import Session
from tests.support.manifests import config

#: Field manager of upstream's controller: the name of its program.
MANAGER = "manager"
#: Field manager of its agent.
AGENT = "dynamic-scoring-addon"


def create_config(session: Session, namespace: str, **spec: Any) -> None:
    """Create the DynamicScoringConfig with upstream's finalizer."""
    manifest = config(namespace, **spec)
    manifest["metadata"]["finalizers"] = [UPSTREAM_FINALIZER]
    session.create(DYNAMIC_SCORING_CONFIGS.path(namespace), manifest)


def create_work(session: Session, cluster: str, *summaries: dict[str, Any]) -> None:
    """Create the ManifestWork with these scorers' summaries."""
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIGMAP_NAME, "namespace": AGENT_NAMESPACE},
        "data": {"summaries": json.dumps(summaries)},
    }
    body = {
        "apiVersion": MANIFEST_WORKS.api_version,
        "kind": MANIFEST_WORKS.kind,
        "metadata": {"name": MANIFESTWORK_NAME, "namespace": cluster},
        "spec": {"workload": {"manifests": [config_map]}},
    }
    session.request("POST", MANIFEST_WORKS.path(cluster), query={"fieldManager": MANAGER}, body=body)


def create_score(session: Session, cluster: str, name: str, **values: int) -> None:
    """Create an AddOnPlacementScore with these items."""
    body = {
        "apiVersion": ADDON_PLACEMENT_SCORES.api_version,
        "kind": ADDON_PLACEMENT_SCORES.kind,
        "metadata": {"name": name, "namespace": cluster},
    }
    session.request("POST", ADDON_PLACEMENT_SCORES.path(cluster), query={"fieldManager": AGENT}, body=body)
    scores = [{"name": item, "value": value} for item, value in values.items()]
    session.merge(ADDON_PLACEMENT_SCORES.path(cluster, name, "status"), {"status": {"scores": scores}})
