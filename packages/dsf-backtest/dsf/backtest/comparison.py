"""Two scorers side by side: their items, their order of clusters, and the clusters that Placements would choose."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import entry_points

from pydantic import Field

from dsf.backtest.errors import BacktestError
from dsf.backtest.recording import Question, Recording
from dsf.backtest.summary import BacktestView, summarize_records
from dsf.fleet.views import Time, View
from dsf.text import list_names


class ItemDifference(View):
    """An item on a cluster, at the moments at which both have a value."""

    cluster: str
    item: str
    moments: int
    mean_a: float
    mean_b: float
    mean_difference: float = Field(description="Mean of b - a.")
    largest_difference: int = Field(description="The difference b - a that is farthest from 0.")


class RankView(View):
    """The agreement of both scorers on the order of clusters by one item."""

    item: str
    moments: int = Field(description="Number of moments at which both scorers distinguish clusters.")
    mean: float = Field(description="Spearman's rank correlation: 1 the same order, -1 the reverse.")
    lowest: float


class Span(View):
    """A time span in which a Placement would have had other clusters with one scorer than with the other."""

    start: Time
    seconds: int
    a: list[str]
    b: list[str]


class PlacementDifference(View):
    """The decisions of a Placement with one scorer and with the other."""

    namespace: str
    name: str
    decisions: int
    differ: int
    flaps_a: int = Field(description="Decisions whose clusters differ from those of the previous decision.")
    flaps_b: int
    spans: list[Span] = Field(description="Spans in the order of time.")
    problem: str = Field(default="", description="Why OCM could not decide.")


class ComparisonView(View):
    """The comparison of two scorers."""

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
    backtests_a: list[BacktestView] = Field(default=[], description="Backtests of A on each cluster; none for now.")
    backtests_b: list[BacktestView] = Field(default=[], description="Backtests of B on each cluster; none for now.")

    @property
    def backtests(self) -> list[BacktestView]:
        """The backtests of both sides."""
        return [*self.backtests_a, *self.backtests_b]


@dataclass(frozen=True)
class Common:
    """The clusters and moments that both sides have."""

    clusters: list[str]
    #: Moments in unix seconds, ascending.
    times: list[int]
    #: Seconds between two moments.
    every: int


#: Replays Placements. The arguments are Placements (files, or names of the hub; empty: all Placements of the hub that
#: prefer one of the scores), both sides, and their common data. Returns the differences of each Placement, notes, and
#: sentences about Placements that could not be read. Raises DsfError.
Replay = Callable[
    [Collection[str], Recording, Recording, Common], tuple[list[PlacementDifference], list[str], list[str]]
]


def find_replay() -> Replay | None:
    """Return the function of the extra `optimizer` with the rules of OCM's scheduler; None without the extra."""
    return next((entry.load() for entry in entry_points(group="dsf.scheduler")), None)


def find_common(a: Recording, b: Recording) -> Common:
    """Return the clusters and moments that both sides have.

    Raises BacktestError if there are none.
    """
    clusters = sorted(a.questions.keys() & b.questions.keys())
    if not clusters:
        raise BacktestError(
            f"no cluster is in both: {a.name} has {_list_fields(a.questions)}, {b.name} has {_list_fields(b.questions)}"
        )
    times_by_side = [sorted({at for cluster in clusters for at in side.list_moments(cluster)}) for side in (a, b)]
    if not all(times_by_side):
        raise BacktestError(f"{a.name if not times_by_side[0] else b.name} has no moment of {', '.join(clusters)}")
    start, end = max(times[0] for times in times_by_side), min(times[-1] for times in times_by_side)
    times = sorted({at for side in times_by_side for at in side if start <= at <= end})
    if not times:
        spans = [
            f"{side.name} is from {_format_time(side_times[0])} to {_format_time(side_times[-1])}"
            for side, side_times in zip((a, b), times_by_side, strict=True)
        ]
        raise BacktestError(f"no moment is in both: {', '.join(spans)}")
    return Common(clusters, times, max(side.questions[cluster].every for cluster in clusters for side in (a, b)))


def compare_recordings(a: Recording, b: Recording, common: Common) -> ComparisonView:
    """Return the comparison of both sides, without Placements."""
    pairs: defaultdict[tuple[str, str], Counter[tuple[int, int]]] = defaultdict(Counter)
    orders: defaultdict[str, list[float]] = defaultdict(list)
    for at in common.times:
        for item, values_by_cluster in _pair_values(a, b, common.clusters, at).items():
            for cluster, values in values_by_cluster.items():
                pairs[cluster, item][values] += 1
            if (correlation := compute_rank_correlation(list(values_by_cluster.values()))) is not None:
                orders[item].append(correlation)
    return ComparisonView(
        a=a.name,
        b=b.name,
        clusters=common.clusters,
        start=common.times[0],
        end=common.times[-1],
        moments=len(common.times),
        every=common.every,
        items=sorted(
            (_compare_item(cluster, item, values) for (cluster, item), values in pairs.items()),
            key=lambda view: (-abs(view.mean_difference), view.cluster, view.item),
        ),
        ranks=[
            RankView(
                item=item,
                moments=len(correlations),
                mean=round(statistics.fmean(correlations), 3),
                lowest=round(min(correlations), 3),
            )
            for item, correlations in sorted(orders.items())
        ],
        placements=[],
        notes=[*_list_notes(a, b, common.clusters), *([] if pairs else [_explain_nothing_in_common(a, b, common)])],
        backtests_a=_summarize_side(a, common),
        backtests_b=_summarize_side(b, common),
    )


def _summarize_side(side: Recording, common: Common) -> list[BacktestView]:
    """Return the backtests of a side in the common time span; none for current scores."""
    start, end = common.times[0], common.times[-1]
    questions = [side.questions[name] for name in common.clusters if side.questions[name].every]
    # Round the start up to a multiple of `every`, because the common span may begin with a moment of the other side.
    moments_by_question = [
        (question, range(-(-start // question.every) * question.every, end + 1, question.every))
        for question in questions
    ]
    return [
        summarize_records(question, moments, side.iterate_records(question.cluster, start, end), noise=0)
        for question, moments in moments_by_question
        if moments
    ]


def compute_rank_correlation(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Return Spearman's rank correlation, or None if all values of a side are equal. Equal values have a mean rank."""
    try:
        return statistics.correlation(*(_compute_ranks([pair[side] for pair in pairs]) for side in (0, 1)))
    except statistics.StatisticsError:
        return None


def _compute_ranks(values: Sequence[int]) -> list[float]:
    sorted_values = sorted(values)
    # Equal values share the mean of their first and last rank.
    mean_ranks = {
        value: (bisect_left(sorted_values, value) + bisect_right(sorted_values, value) - 1) / 2 for value in set(values)
    }
    return [mean_ranks[value] for value in values]


def _pair_values(a: Recording, b: Recording, clusters: Sequence[str], at: int) -> dict[str, dict[str, tuple[int, int]]]:
    """Return item -> cluster -> (value of A, value of B).

    An item named after its score corresponds to the item of the other side that is named after the other score.
    """
    values_by_item: defaultdict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for cluster in clusters:
        record_a, record_b = a.read_record(cluster, at), b.read_record(cluster, at)
        if record_a is None or record_b is None:
            continue
        for item, value in record_a.items.items():
            is_score_name = item == a.questions[cluster].score_name and item not in record_b.items
            other_value = record_b.items.get(b.questions[cluster].score_name if is_score_name else item)
            if other_value is not None:
                values_by_item[item][cluster] = (value, other_value)
    return values_by_item


def _compare_item(cluster: str, item: str, values: Counter[tuple[int, int]]) -> ItemDifference:
    moments = values.total()
    a, b = (sum(pair[side] * count for pair, count in values.items()) / moments for side in (0, 1))
    return ItemDifference(
        cluster=cluster,
        item=item,
        moments=moments,
        mean_a=round(a, 2),
        mean_b=round(b, 2),
        mean_difference=round(b - a, 2),
        largest_difference=max((value_b - value_a for value_a, value_b in values), key=abs),
    )


def _list_notes(a: Recording, b: Recording, clusters: Sequence[str]) -> Iterator[str]:
    for side in (a, b):
        if exclusive_clusters := sorted(side.questions.keys() - set(clusters)):
            yield f"only {side.name} has {list_names(exclusive_clusters, 5)}: left out"
    cadences = {side.questions[cluster].every for side in (a, b) for cluster in clusters}
    if len(cadences) > 1:
        yield f"the moments are {' and '.join(map(str, sorted(cadences)))} s apart: a score counts until the next one"


def _explain_nothing_in_common(a: Recording, b: Recording, common: Common) -> str:
    """Return why no item could be compared."""
    names_a, names_b = (
        {
            name
            for at in common.times
            for cluster in common.clusters
            if (record := side.read_record(cluster, at)) is not None
            for name in record.items
        }
        for side in (a, b)
    )
    if names_a & names_b:
        return f"{a.name} and {b.name} never have the same item on one cluster at one moment: nothing is in common"
    descriptions = [
        f"{side.name} has {list_names(sorted(names), 5) if names else 'no items'}"
        for side, names in ((a, names_a), (b, names_b))
    ]
    remedy = "; items are compared by name, so give both the same scoreDimensionFormat" if names_a and names_b else ""
    return f"no item is in both: {', '.join(descriptions)}{remedy}"


def _list_fields(questions: Mapping[str, Question]) -> str:
    return ", ".join(sorted(questions)) or "none"


def _format_time(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
