"""Two scorers side by side: their items, the order that they give clusters, and what Placements would have chosen."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pydantic import Field

from dsf.backtest.placements import Decisions, Placement, Scores
from dsf.backtest.record import Question, Record
from dsf.backtest.recording import Recording
from dsf.backtest.summary import BacktestView
from dsf.errors import BacktestError
from dsf.fleet.views import Time, View
from dsf.text import listed


class ItemDifference(View):
    """One item on one cluster, at the moments at which both have a value."""

    cluster: str
    item: str
    moments: int
    mean_a: float
    mean_b: float
    mean_difference: float = Field(description="Of b - a.")
    largest_difference: int = Field(description="The b - a that is farthest from 0.")


class RankView(View):
    """How far both agree on the order of clusters by one item."""

    item: str
    moments: int = Field(description="Those at which both tell clusters apart.")
    mean: float = Field(description="Spearman's rank correlation: 1 the same order, -1 the reverse.")
    lowest: float


class Span(View):
    """A time in which a Placement would have had other clusters."""

    start: Time
    seconds: int
    a: list[str]
    b: list[str]


class PlacementDifference(View):
    """One Placement with one scorer and with the other."""

    namespace: str
    name: str
    decisions: int
    differ: int
    flaps_a: int = Field(description="Decisions with other clusters than the one before.")
    flaps_b: int
    spans: list[Span] = Field(description="In the order of time.")
    problem: str = Field(default="", description="Why OCM could not decide.")


class ComparisonView(View):
    """Both scorers."""

    a: str
    b: str
    clusters: list[str]
    start: Time
    end: Time
    moments: int
    every: int = Field(description="Seconds between two moments; 0 for now.")
    items: list[ItemDifference] = Field(description="The largest mean differences first.")
    ranks: list[RankView]
    placements: list[PlacementDifference]
    notes: list[str]
    backtests_a: list[BacktestView] = Field(default=[], description="Of A on each cluster; none for now.")
    backtests_b: list[BacktestView] = Field(default=[], description="Of B.")

    @property
    def backtests(self) -> list[BacktestView]:
        """Those of both."""
        return [*self.backtests_a, *self.backtests_b]


@dataclass
class _Pair:
    """Sums over moments."""

    moments: int = 0
    a: int = 0
    b: int = 0
    largest: int = 0

    def add(self, a: int, b: int) -> None:
        self.moments += 1
        self.a, self.b = self.a + a, self.b + b
        self.largest = b - a if abs(b - a) > abs(self.largest) else self.largest


@dataclass
class _Differing:
    """One Placement, replayed with both."""

    placement: Placement
    a: Decisions
    b: Decisions
    decisions: int = 0
    differ: int = 0
    #: Start, end, and the clusters of both.
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


def compared(a: Recording, b: Recording, placements: Sequence[Placement]) -> ComparisonView:
    """Compare them on the clusters and in the time that both have. Raises BacktestError when there is none."""
    clusters = sorted(a.questions.keys() & b.questions.keys())
    if not clusters:
        raise BacktestError(
            f"no cluster is in both: {a.name} has {_names(a.questions)}, {b.name} has {_names(b.questions)}"
        )
    times = _common(a, b, clusters)
    every = max(max(side.questions[cluster].every for cluster in clusters) for side in (a, b))
    resources = frozenset(question.resource for side in (a, b) for question in side.questions.values())
    names = frozenset(question.score_name for side in (a, b) for question in side.questions.values())
    in_force = [Scores({name: side.questions[name] for name in clusters}) for side in (a, b)]
    pairs: defaultdict[tuple[str, str], _Pair] = defaultdict(_Pair)
    orders: defaultdict[str, list[float]] = defaultdict(list)
    differing = [
        _Differing(
            placement,
            placement.replay(in_force[0], resources, names),
            placement.replay(in_force[1], resources, names),
        )
        for placement in placements
    ]
    for number, at in enumerate(times):
        said = [[record for name in clusters if (record := side.get(name, at)) is not None] for side in (a, b)]
        for item, of_clusters in _both(said, a, b).items():
            for cluster, (first, second) in of_clusters.items():
                pairs[cluster, item].add(first, second)
            if (correlation := spearman(list(of_clusters.values()))) is not None:
                orders[item].append(correlation)
        for scores, records in zip(in_force, said, strict=True):
            scores.take(records)
        for placement in differing:
            placement.decide(at, times[number + 1] if number + 1 < len(times) else at + every)
    return ComparisonView(
        a=a.name,
        b=b.name,
        clusters=clusters,
        start=times[0],
        end=times[-1],
        moments=len(times),
        every=every,
        items=sorted(
            (_item(cluster, item, pair) for (cluster, item), pair in pairs.items()),
            key=lambda view: (-abs(view.mean_difference), view.cluster, view.item),
        ),
        ranks=[
            RankView(item=item, moments=len(found), mean=round(statistics.fmean(found), 3), lowest=round(min(found), 3))
            for item, found in sorted(orders.items())
        ],
        placements=[_placement(one) for one in differing],
        notes=list(_notes(a, b, clusters, differing)),
    )


def spearman(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Spearman's rank correlation, equal values with their mean rank; None if one side tells nothing apart."""
    try:
        return statistics.correlation(*(_ranks([pair[side] for pair in pairs]) for side in (0, 1)))
    except statistics.StatisticsError:
        return None


def _ranks(values: Sequence[int]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def _common(a: Recording, b: Recording, clusters: Sequence[str]) -> list[int]:
    """The moments of both, in the time that both cover."""
    found = [sorted({at for cluster in clusters for at in side.times(cluster)}) for side in (a, b)]
    if not all(found):
        raise BacktestError(f"{a.name if not found[0] else b.name} has no moment of {', '.join(clusters)}")
    start, end = max(times[0] for times in found), min(times[-1] for times in found)
    times = sorted({at for side in found for at in side if start <= at <= end})
    if not times:
        spans = [
            f"{side.name} is from {_time(own[0])} to {_time(own[-1])}" for side, own in zip((a, b), found, strict=True)
        ]
        raise BacktestError(f"no moment is in both: {', '.join(spans)}")
    return times


def _both(said: Sequence[Sequence[Record]], a: Recording, b: Recording) -> dict[str, dict[str, tuple[int, int]]]:
    """Item -> cluster -> the values of both. An item with the score's own name is the other's with its own name."""
    of_b = {record.cluster: record.items for record in said[1]}
    found: defaultdict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for record in said[0]:
        others = of_b.get(record.cluster, {})
        for item, value in record.items.items():
            named = item == a.questions[record.cluster].score_name and item not in others
            other = others.get(b.questions[record.cluster].score_name if named else item)
            if other is not None:
                found[item][record.cluster] = (value, other)
    return found


def _item(cluster: str, item: str, pair: _Pair) -> ItemDifference:
    a, b = pair.a / pair.moments, pair.b / pair.moments
    return ItemDifference(
        cluster=cluster,
        item=item,
        moments=pair.moments,
        mean_a=round(a, 2),
        mean_b=round(b, 2),
        mean_difference=round(b - a, 2),
        largest_difference=pair.largest,
    )


def _placement(differing: _Differing) -> PlacementDifference:
    return PlacementDifference(
        namespace=differing.placement.namespace,
        name=differing.placement.name,
        decisions=differing.decisions,
        differ=differing.differ,
        flaps_a=differing.a.flaps,
        flaps_b=differing.b.flaps,
        spans=[Span(start=start, seconds=end - start, a=list(a), b=list(b)) for start, end, a, b in differing.spans],
        problem=differing.a.problem or differing.b.problem,
    )


def _notes(a: Recording, b: Recording, clusters: Sequence[str], placements: Sequence[_Differing]) -> Iterator[str]:
    for side in (a, b):
        if only := sorted(side.questions.keys() - set(clusters)):
            yield f"only {side.name} has {listed(only, 5)}: left out"
    cadences = {side.questions[cluster].every for side in (a, b) for cluster in clusters}
    if len(cadences) > 1:
        yield f"the moments are {' and '.join(map(str, sorted(cadences)))} s apart: a score counts until the next one"
    others = {name for one in placements for name in one.placement.clusters} - set(clusters)
    if others:
        yield f"clusters of Placements that were not tested have their score of now: {listed(sorted(others), 5)}"
    if any(placement.a.has_cel for placement in placements):
        yield "CEL expressions of Placements' predicates are not evaluated: they count as met"


def _names(questions: Mapping[str, Question]) -> str:
    return ", ".join(sorted(questions)) or "none"


def _time(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
