"""Kubernetes' label selectors, for clusters."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import ConfigDict, Field, model_validator

from dsf.api.meta import SpecModel

_VALUES_RULE: Final = "values goes with In and NotIn and only with them"
_EMPTY_RULE: Final = "selects nothing in particular: set matchLabels or matchExpressions"
_Text = Annotated[str, Field(max_length=317)]


class Operator(StrEnum):
    """How a label is compared."""

    In = "In"
    NotIn = "NotIn"
    Exists = "Exists"
    DoesNotExist = "DoesNotExist"


class Requirement(SpecModel):
    """One label."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "(self.operator == 'In' || self.operator == 'NotIn') == (size(self.values) > 0)",
                    "message": _VALUES_RULE,
                }
            ]
        }
    )

    key: str = Field(description="The label's key.", min_length=1, max_length=317)
    operator: Operator = Field(description="How it is compared.")
    values: tuple[_Text, ...] = Field(default=(), description="What it is compared with.", max_length=64)

    @model_validator(mode="after")
    def _values_go_with_operator(self) -> Self:
        if (self.operator in (Operator.In, Operator.NotIn)) != bool(self.values):
            raise ValueError(_VALUES_RULE)
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet the requirement. As in Kubernetes, NotIn is also true without the label."""
        match self.operator:
            case Operator.In:
                return labels.get(self.key) in self.values
            case Operator.NotIn:
                return labels.get(self.key) not in self.values
            case Operator.Exists:
                return self.key in labels
        return self.key not in labels


class ClusterSelector(SpecModel):
    """ManagedClusters by their labels; all that is said must be true."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {"rule": "has(self.matchLabels) || size(self.matchExpressions) > 0", "message": _EMPTY_RULE}
            ]
        }
    )

    match_labels: dict[str, _Text] | None = Field(
        default=None, description="Labels with their values.", min_length=1, max_length=32
    )
    match_expressions: tuple[Requirement, ...] = Field(default=(), description="More about labels.", max_length=32)

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        if not (self.match_labels or self.match_expressions):
            raise ValueError(_EMPTY_RULE)
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects a cluster with these labels."""
        wanted = (self.match_labels or {}).items()
        return all(labels.get(key) == value for key, value in wanted) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )
