"""Decisions of Placements over time with one scorer and with another, by the rules of OCM's scheduler (`scheduling`).

Clusters, taints, other scores and other Placements are as they are now. Both sides begin with the current clusters of
the Placement. `Steady` counts the clusters that were chosen at the previous moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise

from dsf.backtest.comparison import Common, PlacementDifference, Span
from dsf.backtest.recording import Question, Record, Recording
from dsf.placements.scheduling import SchedulingDecision, ScoreKey, Situation, decide_placement
from dsf.placements.situations import read
from dsf.text import list_names


@dataclass
class Scores:
    """A scorer's current items on each cluster. A score is valid until the next one, or until it expires."""

    questions: Mapping[str, Question]
    _last: dict[str, Record] = field(default_factory=dict)

    def add_records(self, records: Iterable[Record]) -> None:
        """Add the records of a moment. After a failure, the previous score stays valid."""
        self._last.update((record.cluster, record) for record in records if record.outcome != "error")

    def find_value(self, cluster: str, item: str, at: int, names: frozenset[str]) -> int | None:
        """Return the item's value.

        For an item with one of the score names `names`, the item with the score's own name counts.
        """
        record = self._last.get(cluster)
        if record is None or at > record.at + self.questions[cluster].validity:
            return None
        if item not in record.items and item in names:
            item = self.questions[cluster].score_name
        return record.items.get(item)


class Replay:
    """The decisions of one Placement at successive moments."""

    def __init__(self, situation: Situation, scores: Scores, resources: frozenset[str], names: frozenset[str]) -> None:
        """Prepare the decisions; `scores` replace the AddOnPlacementScores `resources`."""
        self._situation = situation
        self._scores = scores
        self._resources = resources
        self._names = names
        self.chosen: tuple[str, ...] | None = None
        #: Number of moments at which the clusters changed.
        self.flaps = 0
        self.problem = ""
        self.has_cel = False

    def decide(self, at: int) -> tuple[str, ...]:
        """Return the clusters at this moment, sorted."""
        outcome = self._make_decision(at)
        self.problem, self.has_cel = outcome.problem, outcome.has_cel
        decision = tuple(sorted(outcome.chosen))
        self.flaps += self.chosen is not None and decision != self.chosen
        self.chosen = decision
        return decision

    def _make_decision(self, at: int) -> SchedulingDecision:
        situation = replace(self._situation, now=datetime.fromtimestamp(at, UTC))
        if self.chosen is not None:
            situation = replace(situation, decided=frozenset(self.chosen))
        return decide_placement(situation, hypothetical_scores=self._find_scores(at))

    def _find_scores(self, at: int) -> dict[ScoreKey, int | None]:
        """Return the scores that this Placement reads, on the clusters that were tested."""
        policy = self._situation.spec.get("prioritizerPolicy") or {}
        hypothetical_scores: dict[ScoreKey, int | None] = {}
        for configuration in policy.get("configurations") or ():
            addon = (configuration.get("scoreCoordinate") or {}).get("addOn") or {}
            resource, item = str(addon.get("resourceName", "")), str(addon.get("scoreName", ""))
            if resource in self._resources:
                for cluster in self._scores.questions:
                    hypothetical_scores[ScoreKey(cluster, resource, item)] = self._scores.find_value(
                        cluster, item, at, self._names
                    )
        return hypothetical_scores


@dataclass
class _Both:
    """A Placement with the scores of both sides."""

    situation: Situation
    a: Replay
    b: Replay
    decisions: int = 0
    differ: int = 0
    #: Start, end, and the clusters of both sides.
    spans: list[tuple[int, int, tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)

    def decide(self, at: int, until: int) -> None:
        a, b = self.a.decide(at), self.b.decide(at)
        self.decisions += 1
        if a == b:
            return
        self.differ += 1
        if self.spans and self.spans[-1][1:] == (at, a, b):
            self.spans[-1] = (self.spans[-1][0], until, a, b)
        else:
            self.spans.append((at, until, a, b))

    def make_view(self) -> PlacementDifference:
        metadata = self.situation.placement["metadata"]
        return PlacementDifference(
            namespace=str(metadata.get("namespace", "")),
            name=str(metadata["name"]),
            decisions=self.decisions,
            differ=self.differ,
            flaps_a=self.a.flaps,
            flaps_b=self.b.flaps,
            spans=[Span(start=start, seconds=end - start, a=list(a), b=list(b)) for start, end, a, b in self.spans],
            problem=self.a.problem or self.b.problem,
        )


def replay(
    placement_names: Collection[str], a: Recording, b: Recording, common: Common
) -> tuple[list[PlacementDifference], list[str], list[str]]:
    """Return the differences, notes and problems; see `dsf.backtest.comparison.Replay`, whose entry point this is."""
    questions = [question for side in (a, b) for question in side.questions.values()]
    resources = frozenset(question.resource for question in questions)
    situations, problems = read(placement_names, sorted({question.cluster for question in questions}), resources)
    differences, notes = replay_situations(situations, a, b, common)
    return differences, notes, problems


def replay_situations(
    situations: Sequence[Situation], a: Recording, b: Recording, common: Common
) -> tuple[list[PlacementDifference], list[str]]:
    """Return the decisions of these Placements with the scores of both sides, and notes."""
    questions = [question for side in (a, b) for question in side.questions.values()]
    resources = frozenset(question.resource for question in questions)
    names = frozenset(question.score_name for question in questions)
    scores = [Scores({name: side.questions[name] for name in common.clusters}) for side in (a, b)]
    replays = [
        _Both(situation, Replay(situation, scores[0], resources, names), Replay(situation, scores[1], resources, names))
        for situation in situations
    ]
    for at, until in pairwise([*common.times, common.times[-1] + common.every]) if replays else ():
        for of_side, side in zip(scores, (a, b), strict=True):
            of_side.add_records(record for name in common.clusters if (record := side.get(name, at)) is not None)
        for placement_replay in replays:
            placement_replay.decide(at, until)
    notes = []
    if untested := {name for situation in situations for name in situation.clusters} - set(common.clusters):
        notes.append(
            f"clusters of Placements that were not tested have their score of now: {list_names(sorted(untested), 5)}"
        )
    if any(placement_replay.a.has_cel for placement_replay in replays):
        notes.append("CEL expressions of Placements' predicates are not evaluated: they count as met")
    return [placement_replay.make_view() for placement_replay in replays], notes
