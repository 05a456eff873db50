"""Rules for readers of a score while cycles fail, without results, and while it changes little: `spec.execution`.

The rules are parts of a `ScoreRule` (`dsf.api.scorerule`).
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import Field, StrictInt

from dsf.api.meta import Rule, SpecModel
from dsf.api.types import MAX_SECONDS, USED_LABELS

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
    value: ScoreValue = Field(description="Its value.")


class EmptyRule(SpecModel):
    """The published score after a valid answer without results."""

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
