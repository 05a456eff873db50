"""Which AddOnPlacementScores the hub's desired state wants, for the score writer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from dsf.api.naming import label_value, sanitize_resource_name
from dsf.hub.scorerplan import ScorerPlan
from dsf.hub.summaries import FleetPlan


@dataclass(frozen=True)
class PlanOwners:
    """See `dsf.scores.writer.Owners`."""

    plan: FleetPlan

    def wants(self, cluster: str, label: str) -> bool:
        """Whether the scorer with this label value has a score on this cluster, if its cycles succeed.

        A scorer that cannot run or be read at the moment keeps its scores until they expire.
        """
        if not self.plan.is_enabled:
            # Scores go if there is no configuration; one that cannot be read is not gone.
            return not self.plan.has_no_config
        if label in self._unreadable:
            return cluster in self.plan.clusters
        scorer = self._by_label.get(label)
        return scorer is not None and self._has_score(scorer, cluster)

    def scorer_of(self, cluster: str, name: str) -> str | None:
        """The scorer whose score has this object name on a cluster."""
        scorer = self._by_name.get(name)
        return scorer.name if scorer is not None and self.wants(cluster, label_value(scorer.name)) else None

    def _has_score(self, scorer: ScorerPlan, cluster: str) -> bool:
        if cluster not in self.plan.clusters:
            return False
        if scorer.resolved is None:
            return True
        if cluster in scorer.variants and scorer.variants[cluster] is None:
            # It does not select the cluster.
            return False
        return not self.plan.masks.hides(cluster, scorer.resolved.score_name)

    @cached_property
    def _candidates(self) -> list[ScorerPlan]:
        return [scorer for scorer in self.plan.scorers.values() if not scorer.has_no_name]

    @cached_property
    def _by_label(self) -> dict[str, ScorerPlan]:
        return {label_value(scorer.name): scorer for scorer in self._candidates}

    @cached_property
    def _by_name(self) -> dict[str, ScorerPlan]:
        return {
            sanitize_resource_name(scorer.resolved.score_name): scorer
            for scorer in self._candidates
            if scorer.resolved is not None
        }

    @cached_property
    def _unreadable(self) -> frozenset[str]:
        return frozenset(label_value(key.partition("/")[2]) for key in self.plan.unreadable)
