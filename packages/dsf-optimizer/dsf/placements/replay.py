"""Decisions of one Placement over time with one scorer, by the rules of OCM's scheduler (`scheduling`).

Clusters, taints, other scores and other Placements are as they are now. Both begin with the clusters that the Placement
has now, and `Steady` counts those that were chosen the moment before.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from dsf.backtest.placements import Scores
from dsf.placements.scheduling import SchedulingDecision, ScoreKey, Situation, schedule


class Replay:
    """The decisions of one Placement, moment after moment."""

    def __init__(self, situation: Situation, scores: Scores, resources: frozenset[str], names: frozenset[str]) -> None:
        """`resources` are the AddOnPlacementScores in whose place `scores` are put."""
        self._situation = situation
        self._scores = scores
        self._resources = resources
        self._names = names
        self.chosen: tuple[str, ...] | None = None
        #: How often the clusters were others than at the moment before.
        self.flaps = 0
        self.problem = ""
        self.has_cel = False

    def decide(self, at: int) -> tuple[str, ...]:
        """The clusters at this moment, sorted."""
        outcome = self._schedule(at)
        self.problem, self.has_cel = outcome.problem, outcome.has_cel
        chosen = tuple(sorted(outcome.chosen))
        self.flaps += self.chosen is not None and chosen != self.chosen
        self.chosen = chosen
        return chosen

    def _schedule(self, at: int) -> SchedulingDecision:
        situation = replace(self._situation, now=datetime.fromtimestamp(at, UTC))
        if self.chosen is not None:
            situation = replace(situation, decided=frozenset(self.chosen))
        return schedule(situation, asked=self._asked(at))

    def _asked(self, at: int) -> dict[ScoreKey, int | None]:
        """The scores in question on the clusters that were tested."""
        policy = self._situation.spec.get("prioritizerPolicy") or {}
        asked: dict[ScoreKey, int | None] = {}
        for configuration in policy.get("configurations") or ():
            addon = (configuration.get("scoreCoordinate") or {}).get("addOn") or {}
            resource, item = str(addon.get("resourceName", "")), str(addon.get("scoreName", ""))
            if resource in self._resources:
                for cluster in self._scores.questions:
                    asked[ScoreKey(cluster, resource, item)] = self._scores.value(cluster, item, at, self._names)
        return asked


@dataclass(frozen=True)
class ReplayedPlacement:
    """A Placement of `dsf compare`."""

    situation: Situation

    @property
    def namespace(self) -> str:
        """Empty where its manifest has none."""
        return str(self.situation.placement["metadata"].get("namespace", ""))

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.situation.placement["metadata"]["name"])

    @property
    def clusters(self) -> Collection[str]:
        """Those that it chooses from."""
        return self.situation.clusters

    def replay(self, scores: Scores, resources: frozenset[str], names: frozenset[str]) -> Replay:
        """Its decisions with these scores in place of those of the AddOnPlacementScores `resources`."""
        return Replay(self.situation, scores, resources, names)
