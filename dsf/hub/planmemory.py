"""Keeps each scorer's plan until something that it was made from changes.

The whole desired state is built again after changes of any object, dozens of times while a thousand scorers become
Active. So each of these must cost what changed, not what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from datetime import datetime

from dsf.api.scorer import DynamicScorer
from dsf.api.variants import Memory
from dsf.hub.obstacle import Obstacle
from dsf.hub.scorerplan import ScorerPlan


class PlanMemory:
    """The plans of one hub's scorers. Not thread-safe."""

    def __init__(self) -> None:
        #: Clusters' configurations of scorers that differ between clusters.
        self.variants: Memory = {}
        self._shared: tuple[object, ...] = ()
        self._kept: dict[str, tuple[tuple[object, ...], ScorerPlan]] = {}

    def begin(self, *shared: object) -> None:
        """Start the next desired state; `shared` is what all plans are made from, such as the clusters."""
        if shared != self._shared:
            self._shared = shared
            self._kept.clear()

    def plan(
        self, scorer: DynamicScorer, unhealthy: Obstacle | None, now: datetime, make: Callable[[], ScorerPlan]
    ) -> ScorerPlan:
        """The plan of a scorer, made only if the known one is outdated."""
        metadata, status = scorer.metadata, scorer.status
        # Not the whole status: the hub writes it, and most of it is no input.
        inputs = (
            scorer.spec,
            (metadata.uid, metadata.creation_timestamp, metadata.annotations),
            (status.health_status, status.last_synced_config),
            unhealthy,
        )
        kept = self._kept.get(scorer.key)
        if kept is not None and kept[0] == inputs and not _is_over(kept[1], now):
            if kept[1].scorer is not scorer:
                kept = (kept[0], replace(kept[1], scorer=scorer))
        else:
            kept = (inputs, make())
        self._kept[scorer.key] = kept
        if kept[1].obstacle is not None and kept[1].obstacle.error is not None:
            # An internal error may be gone at the next attempt.
            del self._kept[scorer.key]
        return kept[1]

    def forget_others(self, scorers: Set[str]) -> None:
        """Drop the plans of all other scorers."""
        for gone in self._kept.keys() - scorers:
            del self._kept[gone]
        for gone in self.variants.keys() - scorers:
            del self.variants[gone]


def _is_over(plan: ScorerPlan, now: datetime) -> bool:
    """Whether its pause has ended."""
    return plan.suspended_until is not None and plan.suspended_until <= now.timestamp()
