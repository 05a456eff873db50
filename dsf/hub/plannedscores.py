"""Finds the AddOnPlacementScores that the desired state of the hub contains, for the score writer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dsf.api.naming import make_label_value, sanitize_resource_name
from dsf.api.score import compute_default_validity, make_score_body
from dsf.hub.plan import FleetPlan
from dsf.hub.scorerplan import ScorerPlan


@dataclass(frozen=True)
class PlannedScores:
    """The scores of one plan. Implements `dsf.scores.writer.DesiredScores`."""

    plan: FleetPlan

    def needs_score(self, cluster: str, label: str) -> bool:
        """Return True if the scorer with this label value has a score on this cluster, once its cycles succeed.

        A scorer that currently cannot run or be read keeps its scores until they expire.
        """
        if not self.plan.is_enabled:
            # Scores are removed if the configuration is absent, and stay if it is unreadable.
            return not self.plan.has_no_config
        if label in self._unreadable:
            return cluster in self.plan.clusters
        scorer = self._by_label.get(label)
        return scorer is not None and self._has_score(scorer, cluster)

    @property
    def version(self) -> object:
        """An object that is replaced by another one at each change of the desired state."""
        return self.plan

    def plan_adoption(self, cluster: str, name: str, created_at: float) -> tuple[dict[str, Any], int] | None:
        """Return how to adopt a score object of the original project: (object without status, validity in seconds).

        Return None if the object with this name and creation time (Unix time) is not the original project's. The
        original project's agent creates a score after the DynamicScorer, and before this project's hub claims the name
        of the scorer. A DynamicScorer that is created now cannot adopt an older score, because the hub claims its name
        immediately.
        """
        scorer = self._by_name.get(name)
        if scorer is None or not self.needs_score(cluster, make_label_value(scorer.name)) or not self.plan.is_enabled:
            return None
        claim = next(iter(self.plan.claims.scorers.get(scorer.name, ())), None)
        scorer_created_at = scorer.scorer.metadata.creation_timestamp
        if claim is None or claim.owner != scorer.scorer.key or scorer_created_at is None:
            return None
        if not scorer_created_at.timestamp() <= created_at < claim.claimed_at:
            return None
        body = make_score_body(cluster, scorer.name, _find_score_name(scorer), owner_uid=self.plan.clusters[cluster])
        params = scorer.scorer.spec.scoring.params
        interval = params.interval if params is not None else 0
        if scorer.resolved_scorer is not None:
            return body, scorer.resolved_scorer.summary.validity_seconds
        return body, scorer.scorer.spec.execution.validity_seconds or compute_default_validity(interval)

    def find_scorer(self, cluster: str, name: str) -> str | None:
        """Return the name of the scorer whose score object has this name on a cluster; None if there is none."""
        scorer = self._by_name.get(name)
        return scorer.name if scorer is not None and self.needs_score(cluster, make_label_value(scorer.name)) else None

    def _has_score(self, scorer: ScorerPlan, cluster: str) -> bool:
        if cluster not in self.plan.clusters:
            return False
        if scorer.resolved_scorer is None:
            return True
        if cluster in scorer.variants and scorer.variants[cluster] is None:
            # The scorer does not select the cluster.
            return False
        return not self.plan.masks.hides(cluster, scorer.resolved_scorer.score_name)

    @cached_property
    def _candidates(self) -> list[ScorerPlan]:
        return [scorer for scorer in self.plan.scorers.values() if not scorer.has_no_name]

    @cached_property
    def _by_label(self) -> dict[str, ScorerPlan]:
        return {make_label_value(scorer.name): scorer for scorer in self._candidates}

    @cached_property
    def _by_name(self) -> dict[str, ScorerPlan]:
        # Unresolved scorers may also have a score name. Resolved scorers come last, so that they take precedence.
        plans_with_score_name = [
            scorer for scorer in self._candidates if scorer.resolved_scorer is None and _find_score_name(scorer)
        ]
        plans_with_score_name += [scorer for scorer in self._candidates if scorer.resolved_scorer is not None]
        return {sanitize_resource_name(_find_score_name(scorer)): scorer for scorer in plans_with_score_name}

    @cached_property
    def _unreadable(self) -> frozenset[str]:
        names = (key.partition("/")[2] for key in self.plan.unreadable)
        # Scorers in other namespaces may have the same name.
        return frozenset(
            make_label_value(name) for name in names if self.plan.find_owner_key(name) in self.plan.unreadable
        )


def _find_score_name(scorer: ScorerPlan) -> str:
    """Return the resolved score name, else the one in the spec or the last /config; empty if none is set."""
    if scorer.resolved_scorer is not None:
        return scorer.resolved_scorer.score_name
    params, synced_config = scorer.scorer.spec.scoring.params, scorer.scorer.status.last_synced_config
    own_name = params.name if params is not None else ""
    return own_name or (synced_config.scoring.params.name if synced_config is not None else "") or ""
