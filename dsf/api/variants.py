"""What is told of a scorer on one cluster, where that is not the same on all."""

from __future__ import annotations

from typing import Any

from dsf.api.authentication import Access
from dsf.api.resolve import ResolvedScorer
from dsf.api.scoringauthentication import ClusterFacts, Override
from dsf.api.summary import ScorerSummary
from dsf.api.urls import join_url
from dsf.api.ways import Way, access_with, check_allowed


def is_varied(resolved: ResolvedScorer) -> bool:
    """Whether clusters are told different things."""
    return any(
        way.authentication is not None and way.authentication.spec.overrides
        for way in (resolved.source_way, resolved.scoring_way)
    )


def on_cluster(resolved: ResolvedScorer, cluster: ClusterFacts) -> ScorerSummary:
    """What this cluster is told. Raises ResolutionError when it cannot run there."""
    update: dict[str, Any] = {}
    for stage, way in (("source", resolved.source_way), ("scoring", resolved.scoring_way)):
        override = way.authentication.spec.on(cluster) if way.authentication is not None else None
        if override is not None:
            endpoint, access = _overridden(stage, way, override, getattr(resolved.summary, f"{stage}_endpoint"))
            update |= {f"{stage}_endpoint": endpoint, f"{stage}_access": access}
    return resolved.summary.model_copy(update=update) if update else resolved.summary


def _overridden(stage: str, way: Way, override: Override, endpoint: str) -> tuple[str, Access]:
    authentication = way.authentication
    if authentication is None:
        raise RuntimeError("an override of nothing")
    if override.host is not None:
        endpoint = join_url(override.host, way.path)
        check_allowed(stage, authentication, endpoint)
    where = f"an override of ScoringAuthentication {authentication.metadata.name!r}"
    methods = override if override.is_any else authentication.spec
    return endpoint, access_with(authentication, methods, override.tls or authentication.spec.tls, where)
