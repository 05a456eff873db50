"""How the results of a scorer become a score: one rule for hub, `dsf explain`, backtests and conformance tests.

A `ScoreRule` is made from a DynamicScorer's spec, travels to the results workers in the registry, and follows from a
ScorerSummary where there is no registry. `items` is the only place where results become items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from dsf.api.aggregate import Aggregate, aggregated
from dsf.api.policies import EmptyRule, FailingRule, HoldRule
from dsf.api.score import DimensionFormat, Item, ScoreItems, build_items

Result = tuple[Mapping[str, str], float]


class ScoreRule(BaseModel):
    """Name, items and destination of a score, and what readers see instead of it."""

    model_config = ConfigDict(frozen=True)

    score_name: str
    #: Formats of item names, the first one first; an empty one is the default.
    dimension_formats: tuple[str, ...] = ("",)
    #: How results are combined; None: each result is an item.
    aggregate: Aggregate | None = None
    destination: Literal["AddOnPlacementScore", "None"] = "AddOnPlacementScore"
    when_failing: FailingRule = FailingRule()
    when_empty: EmptyRule = EmptyRule()
    #: How changes are held back; None: every change is published.
    hold: HoldRule | None = None

    @property
    def is_published(self) -> bool:
        """True if the score becomes an AddOnPlacementScore."""
        return self.destination != "None"

    def aggregated(self, results: Sequence[Result]) -> Sequence[Result]:
        """Return the results of which items are made: merged by `aggregate`, or as they are."""
        return results if self.aggregate is None else aggregated(results, self.aggregate.by, self.aggregate.how)


@dataclass(frozen=True)
class RuledItems:
    """Items of a set of results, and the results they are made of."""

    built: ScoreItems
    #: After aggregation.
    results: Sequence[Result]

    @property
    def values(self) -> dict[str, int]:
        """Value of each item by name, -100 to 100."""
        return dict(self.built.items)


def items(results: Sequence[Result], rule: ScoreRule, cluster: str) -> RuledItems:
    """Return the items that the hub makes of `results` of this cluster, whatever the rule's destination.

    Raises ScoreObjectTooLargeError if they exceed one AddOnPlacementScore.
    """
    merged = rule.aggregated(results)
    first, *more = rule.dimension_formats
    return RuledItems(build_items(merged, first, cluster, rule.score_name, more=more), merged)


def owners_of_items(results: Sequence[Result], rule: ScoreRule, cluster: str) -> dict[str, Result]:
    """Return the result that gives each item its value, by the item's name.

    If two results have one name by the same format the later one counts; names of an earlier format take precedence.
    """
    owners: dict[str, Result] = {}
    merged = rule.aggregated(results)
    for dimension_format in reversed(rule.dimension_formats):
        dimension = DimensionFormat(dimension_format, cluster, rule.score_name)
        owners |= {dimension.render(labels): (labels, value) for labels, value in merged}
    return owners


def empty_items(rule: ScoreRule, cluster: str, value: int | None) -> tuple[Item, ...]:
    """Return the items of a score without results: those of `when_empty`, else one with `value`; none if it is None.

    If two items have the same name on this cluster the later one counts, as for results.
    """

    def render(dimension_format: str) -> str:
        return DimensionFormat(dimension_format, cluster, rule.score_name).render({})

    if rule.when_empty.items:
        return tuple({render(item.name): item.value for item in rule.when_empty.items}.items())
    return () if value is None else ((render(rule.dimension_formats[0]) or rule.score_name, value),)
