"""Label selectors of Kubernetes, and their evaluation on the labels of a cluster."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from dsf.api.meta import Rule, SpecModel

#: Maximum characters of a label's key, which is PREFIX/NAME: a DNS subdomain (253), a slash, and a name (63). It also
#: limits values here, which Kubernetes limits to 63.
_MAX_LABEL_LENGTH: Final = 253 + 1 + 63

_LabelText = Annotated[str, Field(max_length=_MAX_LABEL_LENGTH)]


class Requirement(SpecModel):
    """A requirement on one label of a managed cluster."""

    rules = (
        Rule(
            "values goes with In and NotIn and only with them",
            "(self.operator == 'In' || self.operator == 'NotIn') == (size(self.values) > 0)",
            lambda self: (self.operator in ("In", "NotIn")) == bool(self.values),
        ),
    )

    key: str = Field(description="Key of the label.", min_length=1, max_length=_MAX_LABEL_LENGTH)
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        description="Comparison of the label's value with values."
    )
    values: tuple[_LabelText, ...] = Field(
        default=(), description="Values for the operators In and NotIn.", max_length=64
    )


class ClusterSelector(SpecModel):
    """Selects the ManagedClusters whose labels meet all requirements."""

    rules = (
        Rule(
            "selects nothing in particular: set matchLabels or matchExpressions",
            "has(self.matchLabels) || size(self.matchExpressions) > 0",
            lambda self: bool(self.match_labels or self.match_expressions),
        ),
    )

    match_labels: dict[str, _LabelText] | None = Field(
        default=None, description="Labels with their values.", min_length=1, max_length=32
    )
    match_expressions: tuple[Requirement, ...] = Field(
        default=(), description="Requirements on labels, with operators.", max_length=32
    )

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return True if this selector selects a cluster with these labels."""
        return matches_selector(self._manifest, labels)

    @functools.cached_property
    def _manifest(self) -> dict[str, Any]:
        return self.to_manifest()


def matches_selector(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return True if labels meet `matchLabels` and `matchExpressions` of a selector in a manifest of any kind.

    An empty selector matches all labels. As in Kubernetes, a NotIn requirement is met if the label is missing.
    """
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_meets_requirement(requirement, labels) for requirement in selector.get("matchExpressions") or ())


def _meets_requirement(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator, values = str(requirement.get("key")), requirement.get("operator"), requirement.get("values") or ()
    # In OCM no cluster meets an invalid requirement. The API server does not validate requirements of
    # ManagedClusterSets.
    if operator in ("In", "NotIn"):
        return bool(values) and (labels.get(key) in values) is (operator == "In")
    if operator in ("Exists", "DoesNotExist"):
        return not values and (key in labels) is (operator == "Exists")
    return False
