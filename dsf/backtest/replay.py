"""Decisions of one Placement over time with one scorer, by the rules of OCM's scheduler (`dsf.fleet.scheduling`).

Clusters, taints, other scores and other Placements are as they are now. Both begin with the clusters that the Placement
has now, and `Steady` counts those that were chosen the moment before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from dsf.backtest.record import Question, Record
from dsf.fleet.scheduling import SchedulingDecision, ScoreKey, Situation, schedule


@dataclass
class Scores:
    """One scorer's items in force on each cluster: a score counts until the next one, or until it expires."""

    questions: Mapping[str, Question]
    _last: dict[str, Record] = field(default_factory=dict)

    def take(self, records: Iterable[Record]) -> None:
        """What was said at one moment. A failure leaves the score before in force."""
        self._last.update((record.cluster, record) for record in records if record.outcome != "error")

    def value(self, cluster: str, item: str, at: int, names: frozenset[str]) -> int | None:
        """The item's value; that of the score's own name for an item named after any of the score names `names`."""
        record = self._last.get(cluster)
        if record is None or at > record.at + self.questions[cluster].validity:
            return None
        if item not in record.items and item in names:
            item = self.questions[cluster].score_name
        return record.items.get(item)


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
