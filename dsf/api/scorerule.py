"""How the results of a scorer become a score: one rule for hub, `dsf explain`, backtests and conformance tests.

A `ScoreRule` is made from a DynamicScorer's spec and reaches the results workers in the registry. A process without the
registry makes the rule from a ScorerSummary. Only `build_rule_items` turns results into items.

`spec.aggregate` combines results before they become items. `spec.execution` has the rules for readers while cycles
fail, without results, and while the score changes little.

`spec.execution.hold` holds changes of an item back. A value is published if all values during the last `for_seconds`
differ from the published value by at least `min_change`, in the same direction. A smaller difference restarts that
time. An item that is new, or whose score has expired, is published immediately. The functions depend on values and
times only, so that backtests can replay the past.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt

from dsf.api.meta import Rule, SpecModel
from dsf.api.score import DimensionFormat, Item, ScoreItems, build_items
from dsf.api.scoringresponse import ScoringResult
from dsf.api.types import MAX_SECONDS, USED_LABELS, UsedLabel

_Label = Annotated[UsedLabel, Field(description="A label of a result that the framework uses.")]


def _check_labels_differ(labels: tuple[UsedLabel, ...]) -> tuple[UsedLabel, ...]:
    if len(set(labels)) != len(labels):
        raise ValueError("names a label twice")
    return labels


class Aggregate(SpecModel):
    """Merges results with the same labels."""

    by: Annotated[tuple[_Label, ...], Field(max_length=len(USED_LABELS)), AfterValidator(_check_labels_differ)] = Field(
        default=(),
        description="Labels to keep; results with the same values of them are one group. None: all are one group.",
    )
    how: Literal["max", "min", "mean", "sum", "last"] = Field(
        alias="with", description="Function for the scores of a group. last: the last in the response."
    )


def _compute_mean(scores: Sequence[float]) -> float:
    # Divide first, to avoid overflow.
    return math.fsum(score / len(scores) for score in scores)


_FUNCTIONS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "max": max,
    "min": min,
    "mean": _compute_mean,
    "sum": sum,
    "last": lambda scores: scores[-1],
}


def group_scores(
    results: Iterable[tuple[Mapping[str, str], float]], by: Sequence[str]
) -> dict[tuple[str, ...], list[float]]:
    """Return the scores of each group in order of the results, by label values; an absent label counts as empty."""
    scores_by_group: dict[tuple[str, ...], list[float]] = {}
    for labels, score in results:
        scores_by_group.setdefault(tuple([labels.get(name, "") for name in by]), []).append(score)
    return scores_by_group


def aggregate_results(
    results: Iterable[tuple[Mapping[str, str], float]], by: Sequence[str], how: str
) -> list[ScoringResult]:
    """Return a result per group, in order of first occurrence. A sum may be infinite."""
    function = _FUNCTIONS[how]
    return [
        ScoringResult({name: value for name, value in zip(by, values, strict=True) if value}, float(function(scores)))
        for values, scores in group_scores(results, by).items()
    ]


ScoreValue = Annotated[StrictInt, Field(ge=-100, le=100)]
_LABEL_PATTERN: Final = r"\$\{(" + "|".join(USED_LABELS) + r")\}"


class FailingRule(SpecModel):
    """The published score while cycles fail."""

    rules = (
        Rule(
            "value goes with behavior Value and only with it",
            "(self.behavior == 'Value') == has(self.value)",
            lambda self: (self.behavior == "Value") == (self.value is not None),
        ),
    )

    failure_threshold: StrictInt = Field(
        default=3, description="Failed cycles in a row after which the behavior applies.", ge=1, le=1000
    )
    behavior: Literal["Keep", "Value", "Remove"] = Field(
        default="Keep",
        description="Keep: the last score until it expires. Value: an explicit value. Remove: nothing.",
    )
    value: ScoreValue | None = Field(default=None, description="The value to show; only with behavior Value.")

    @property
    def threshold(self) -> int:
        """Failed cycles in a row after which something else is written; 0: never."""
        return 0 if self.behavior == "Keep" else self.failure_threshold


class EmptyItem(SpecModel):
    """One item to publish without results."""

    rules = (
        Rule(
            "only ${cluster} and ${scoreName} are known without results; write the labels out",
            f"!self.name.matches({_LABEL_PATTERN!r})",
            lambda self: re.search(_LABEL_PATTERN, self.name) is None,
        ),
    )

    name: str = Field(
        description="Name of the item. Placeholders: ${cluster} ${scoreName}.", min_length=1, max_length=253
    )
    value: ScoreValue = Field(description="Value of the item.")


class EmptyRule(SpecModel):
    """The published score after a valid response without results."""

    rules = (
        Rule(
            "behavior Value goes with either value or items, and only it does",
            "self.behavior == 'Value' ? has(self.value) != has(self.items) : !has(self.value) && !has(self.items)",
            lambda self: (self.value is not None) + (self.items is not None) == (self.behavior == "Value"),
        ),
    )

    behavior: Literal["Empty", "Value"] = Field(
        default="Empty",
        description="Empty: no items. Value: value or items. OCM reads a missing score as 0.",
    )
    value: ScoreValue | None = Field(
        default=None,
        description="Value of the one item to show, named by scoreDimensionFormat with empty labels; only with "
        "behavior Value.",
    )
    items: list[EmptyItem] | None = Field(
        default=None,
        description="The items to show instead of one; only with behavior Value.",
        min_length=1,
        max_length=256,
    )


class HoldRule(SpecModel):
    """Which changes of an item are published."""

    min_change: StrictInt = Field(
        description="Least difference from the published value, in points of -100..100.", ge=1, le=200
    )
    for_seconds: StrictInt = Field(
        default=0,
        description="Seconds for which all values must be that far away, on the same side, before the newest is "
        "published; 0: at once.",
        ge=0,
        le=MAX_SECONDS,
    )


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

    def aggregate_if_set(self, results: Sequence[Result]) -> Sequence[Result]:
        """Return the results for the items, merged by `aggregate` if it is set."""
        return results if self.aggregate is None else aggregate_results(results, self.aggregate.by, self.aggregate.how)


@dataclass(frozen=True)
class RuledItems:
    """Items of a set of results, with the results from which the items are built."""

    built: ScoreItems
    #: Results after aggregation.
    results: Sequence[Result]

    @property
    def values(self) -> dict[str, int]:
        """Value of each item by name, -100 to 100."""
        return dict(self.built.items)


def build_rule_items(results: Sequence[Result], rule: ScoreRule, cluster: str) -> RuledItems:
    """Return the items that the hub builds from `results` on this cluster, regardless of the rule's destination.

    Raises ScoreObjectTooLargeError if they exceed one AddOnPlacementScore.
    """
    merged_results = rule.aggregate_if_set(results)
    first_format, *further_formats = rule.dimension_formats
    return RuledItems(
        build_items(merged_results, first_format, cluster, rule.score_name, further_formats=further_formats),
        merged_results,
    )


def find_item_owners(results: Sequence[Result], rule: ScoreRule, cluster: str) -> dict[str, Result]:
    """Return the result that gives each item its value, by the item's name.

    If two results have the same name by a format, the later result wins; names by an earlier format take precedence.
    """
    owners: dict[str, Result] = {}
    merged_results = rule.aggregate_if_set(results)
    for dimension_format in reversed(rule.dimension_formats):
        dimension = DimensionFormat(dimension_format, cluster, rule.score_name)
        owners |= {dimension.render(labels): (labels, value) for labels, value in merged_results}
    return owners


def build_empty_items(rule: ScoreRule, cluster: str, value: int | None) -> tuple[Item, ...]:
    """Return the items of a score without results: the items of `when_empty`, or an item with `value` unless None.

    If two items have the same name on this cluster, the later item wins, as for results.
    """

    def render(dimension_format: str) -> str:
        return DimensionFormat(dimension_format, cluster, rule.score_name).render({})

    if rule.when_empty.items:
        return tuple({render(item.name): item.value for item in rule.when_empty.items}.items())
    return () if value is None else ((render(rule.dimension_formats[0]) or rule.score_name, value),)


class HeldValue(NamedTuple):
    """The newest value of an item while an older value stays published."""

    #: -100 to 100.
    value: int
    #: Unix seconds since which all values differ by the minimum change in this direction; None for a smaller change.
    differs_since: float | None
    #: Minimum distance from the published value since then.
    min_distance: int


def hold_back_value(
    published_value: int,
    value: int,
    previous_value: HeldValue | None,
    at: float,
    *,
    min_change: int,
    for_seconds: float,
) -> HeldValue | None:
    """Return the state of a `value` that is held back; None if it is published.

    `at` is the time of the measurement (unix seconds), and `previous_value` the item's state before it. Times need not
    ascend: a clock that was set back restarts `for_seconds`, and never ends it early.
    """
    change = value - published_value
    if change == 0:
        return None
    distance = abs(change)
    if distance < min_change:
        return HeldValue(value, None, distance)
    held_since = at
    # Compare the earlier distance again, because the rule may have become stricter in the meantime.
    if (
        previous_value is not None
        and previous_value.differs_since is not None
        and previous_value.min_distance >= min_change
    ):
        is_same_side = (previous_value.value > published_value) == (change > 0)
        if is_same_side:
            held_since, distance = min(previous_value.differs_since, at), min(previous_value.min_distance, distance)
    return None if at - held_since >= for_seconds else HeldValue(value, held_since, distance)


def hold_back(
    published_values: Mapping[str, int],
    measured_values: Mapping[str, int],
    held_values: Mapping[str, HeldValue],
    at: float,
    *,
    min_change: int,
    for_seconds: float,
) -> tuple[dict[str, int], dict[str, HeldValue]]:
    """Return the values to publish for the items of `measured_values`, in their order, and the new held values.

    `published_values` and `held_values` are the results of the last call. Both are empty before the first score, and
    after the last score has expired. `at` is the time of the measurement in unix seconds.
    """
    values_to_publish: dict[str, int] = {}
    new_held_values: dict[str, HeldValue] = {}
    for name, value in measured_values.items():
        values_to_publish[name] = value
        if name not in published_values:
            continue
        held_value = hold_back_value(
            published_values[name], value, held_values.get(name), at, min_change=min_change, for_seconds=for_seconds
        )
        if held_value is not None:
            values_to_publish[name], new_held_values[name] = published_values[name], held_value
    return values_to_publish, new_held_values


def compute_publish_time(held_value: HeldValue, *, min_change: int, for_seconds: float) -> float | None:
    """Return the unix time from which a cycle publishes the held value; None if its change is below `min_change`."""
    if held_value.differs_since is None or held_value.min_distance < min_change:
        return None
    return held_value.differs_since + for_seconds


def describe_hold_rule(min_change: int, for_seconds: int) -> str:
    """Return the rule as a sentence without a full stop."""
    duration_text = f", if it lasts {for_seconds} s" if for_seconds else ""
    return f"a change is published from {min_change} {'point' if min_change == 1 else 'points'} on{duration_text}"
