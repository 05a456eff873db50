"""Replays the decisions of Placements with the recorded scores of two scorers, by the rules of OCM's scheduler.

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
from dsf.placements.situations import read_situations
from dsf.text import list_names


@dataclass
class RecordedScores:
    """A scorer's items on each cluster at the current moment. A score is valid until it expires or is replaced."""

    #: Cluster -> question of the recording.
    questions: Mapping[str, Question]
    #: Cluster -> last successful record.
    _last_records: dict[str, Record] = field(default_factory=dict)

    def add_records(self, records: Iterable[Record]) -> None:
        """Add the records of a moment. After a failure, the previous score stays valid."""
        self._last_records.update((record.cluster, record) for record in records if record.outcome != "error")

    def find_value(self, cluster: str, item: str, at: int, names: frozenset[str]) -> int | None:
        """Return the item's value at `at` (unix seconds), or None.

        An item that is named after one of the compared scores (`names`) stands for the item that is named after this
        score.
        """
        record = self._last_records.get(cluster)
        if record is None or at > record.at + self.questions[cluster].validity:
            return None
        if item not in record.items and item in names:
            item = self.questions[cluster].score_name
        return record.items.get(item)


class Replay:
    """The decisions of one Placement at successive moments."""

    def __init__(
        self, situation: Situation, scores: RecordedScores, resources: frozenset[str], names: frozenset[str]
    ) -> None:
        """`scores` replace the AddOnPlacementScores with the names `resources`; see `find_value` for `names`."""
        self._situation = situation
        self._scores = scores
        self._resources = resources
        self._names = names
        #: The clusters at the last moment, sorted; None before the first decision.
        self.last_decision: tuple[str, ...] | None = None
        #: Number of moments at which the clusters changed.
        self.flaps = 0
        #: Why no decision was possible at the last moment.
        self.problem = ""
        #: True if the Placement has CEL expressions, which are not evaluated.
        self.has_cel = False

    def decide(self, at: int) -> tuple[str, ...]:
        """Return the chosen clusters at this moment (unix seconds), sorted."""
        outcome = self._make_decision(at)
        self.problem, self.has_cel = outcome.problem, outcome.has_cel
        decision = tuple(sorted(outcome.chosen))
        self.flaps += self.last_decision is not None and decision != self.last_decision
        self.last_decision = decision
        return decision

    def _make_decision(self, at: int) -> SchedulingDecision:
        situation = replace(self._situation, now=datetime.fromtimestamp(at, UTC))
        if self.last_decision is not None:
            situation = replace(situation, decided=frozenset(self.last_decision))
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
class _ReplayComparison:
    """The decisions of a Placement with the scores of side A, and with those of side B."""

    situation: Situation
    a: Replay
    b: Replay
    #: Number of decisions, and of those that differ.
    decisions: int = 0
    differ: int = 0
    #: (start, end, clusters of A, clusters of B) of each time span in which the clusters differ.
    spans: list[tuple[int, int, tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)

    def decide(self, at: int, end: int) -> None:
        a, b = self.a.decide(at), self.b.decide(at)
        self.decisions += 1
        if a == b:
            return
        self.differ += 1
        if self.spans and self.spans[-1][1:] == (at, a, b):
            self.spans[-1] = (self.spans[-1][0], end, a, b)
        else:
            self.spans.append((at, end, a, b))

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
    """Return (differences, notes, problems). `dsf.backtest.comparison.Replay` describes this entry point."""
    questions = [question for side in (a, b) for question in side.questions.values()]
    resources = frozenset(question.resource for question in questions)
    clusters = sorted({question.cluster for question in questions})
    situations, problems = read_situations(placement_names, clusters, resources)
    differences, notes = replay_situations(situations, a, b, common)
    return differences, notes, problems


def replay_situations(
    situations: Sequence[Situation], a: Recording, b: Recording, common: Common
) -> tuple[list[PlacementDifference], list[str]]:
    """Return the differences between the decisions of these Placements with the scores of both sides, and notes."""
    questions = [question for side in (a, b) for question in side.questions.values()]
    resources = frozenset(question.resource for question in questions)
    names = frozenset(question.score_name for question in questions)
    scores_a, scores_b = (RecordedScores({name: side.questions[name] for name in common.clusters}) for side in (a, b))
    comparisons = [
        _ReplayComparison(
            situation, Replay(situation, scores_a, resources, names), Replay(situation, scores_b, resources, names)
        )
        for situation in situations
    ]
    for at, end in pairwise([*common.times, common.times[-1] + common.every]) if comparisons else ():
        for scores, side in ((scores_a, a), (scores_b, b)):
            scores.add_records(record for name in common.clusters if (record := side.read_record(name, at)) is not None)
        for comparison in comparisons:
            comparison.decide(at, end)
    notes = []
    if untested := {name for situation in situations for name in situation.clusters} - set(common.clusters):
        notes.append(
            f"clusters of Placements that were not tested have their score of now: {list_names(sorted(untested), 5)}"
        )
    if any(comparison.a.has_cel for comparison in comparisons):
        notes.append("CEL expressions of Placements' predicates are not evaluated: they count as met")
    return [comparison.make_view() for comparison in comparisons], notes
