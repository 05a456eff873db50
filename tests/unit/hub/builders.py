"""Objects for the unit tests of the hub."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from dsf.api.cluster import ManagedCluster
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringconfig import DynamicScoringConfig
from dsf.api.summary import ScorerSummary
from dsf.hub.plan import FleetPlan

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
GROUP = "dynamic-scoring.open-cluster-management.io/v1alpha1"


def scorer(
    name: str = "s",
    *,
    score: str | None = None,
    interval: int = 30,
    health: str = "Active",
    mode: str = "None",
    created: str = "2026-01-01T00:00:00Z",
    metadata: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> DynamicScorer:
    """Return a scorer without a source that needs no /config."""
    manifest = {
        "apiVersion": GROUP,
        "kind": "DynamicScorer",
        "metadata": {
            "name": name,
            "namespace": "hub",
            "creationTimestamp": created,
            "generation": 1,
            **(metadata or {}),
        },
        "spec": {
            "description": "d",
            "configURL": "http://scorer.test/config",
            "configSyncMode": mode,
            "scoring": {"params": {"name": score or name, "interval": interval}},
            **spec,
        },
        "status": {"healthStatus": health, **(status or {})},
    }
    return DynamicScorer.from_manifest(manifest)


def config(*masks: tuple[str, str], name: str = "dynamic-scoring-config", **metadata: Any) -> DynamicScoringConfig:
    """Return the configuration with these masks (cluster, score)."""
    spec = {"masks": [{"clusterName": cluster, "scoreName": score} for cluster, score in masks]}
    return DynamicScoringConfig.from_manifest(
        {
            "apiVersion": GROUP,
            "kind": "DynamicScoringConfig",
            "metadata": {"name": name, "namespace": "hub", **metadata},
            "spec": spec,
        }
    )


def cluster(name: str, *, accepted: bool = True, **metadata: Any) -> ManagedCluster:
    """Return a managed cluster."""
    return ManagedCluster.from_manifest(
        {
            "apiVersion": "cluster.open-cluster-management.io/v1",
            "kind": "ManagedCluster",
            "metadata": {"name": name, "uid": f"uid-{name}", **metadata},
            "spec": {"hubAcceptsClient": accepted},
        }
    )


def refusal(plan: FleetPlan, scorer: str) -> tuple[str, str]:
    """Return why the scorer `namespace/name` does not run: reason and message; both empty if it runs."""
    obstacle = plan.scorers[scorer].obstacle
    return (obstacle.reason, obstacle.message) if obstacle is not None else ("", "")


def summaries(plan: FleetPlan, cluster: str) -> list[ScorerSummary]:
    """Return the summaries for a cluster's agent."""
    running_summaries = (scorer.get_summary(cluster) for scorer in plan.list_running_scorers(cluster))
    return [summary for summary in running_summaries if summary is not None]
