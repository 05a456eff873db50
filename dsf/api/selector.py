"""Kubernetes' label selectors, for clusters."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from dsf.api.meta import Rule, SpecModel

_Text = Annotated[str, Field(max_length=317)]


class Requirement(SpecModel):
    """A requirement on one label of a managed cluster."""

    rules = (
        Rule(
            "values goes with In and NotIn and only with them",
            "(self.operator == 'In' || self.operator == 'NotIn') == (size(self.values) > 0)",
            lambda self: (self.operator in ("In", "NotIn")) == bool(self.values),
        ),
    )

    key: str = Field(description="Key of the label.", min_length=1, max_length=317)
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        description="Comparison of the label's value with values."
    )
    values: tuple[_Text, ...] = Field(default=(), description="Values for the operators In and NotIn.", max_length=64)


class ClusterSelector(SpecModel):
    """Selects ManagedClusters by their labels; all requirements must hold."""

    rules = (
        Rule(
            "selects nothing in particular: set matchLabels or matchExpressions",
            "has(self.matchLabels) || size(self.matchExpressions) > 0",
            lambda self: bool(self.match_labels or self.match_expressions),
        ),
    )

    match_labels: dict[str, _Text] | None = Field(
        default=None, description="Labels with their values.", min_length=1, max_length=32
    )
    match_expressions: tuple[Requirement, ...] = Field(default=(), description="More about labels.", max_length=32)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return True if it selects a cluster with these labels."""
        return matches(self._manifest, labels)

    @functools.cached_property
    def _manifest(self) -> dict[str, Any]:
        return self.to_manifest()


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return True if labels match `matchLabels` and `matchExpressions` of any object; an empty selector matches all.

    As in Kubernetes, NotIn is also true without the label.
    """
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_meets_requirement(requirement, labels) for requirement in selector.get("matchExpressions") or ())


def _meets_requirement(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator, values = str(expression.get("key")), expression.get("operator"), expression.get("values") or ()
    # OCM matches no cluster with an invalid requirement. The API server does not validate those of ManagedClusterSets.
    if operator in ("In", "NotIn"):
        return bool(values) and (labels.get(key) in values) is (operator == "In")
    if operator in ("Exists", "DoesNotExist"):
        return not values and (key in labels) is (operator == "Exists")
    return False
