"""Label selectors of foreign objects, by Kubernetes' rules; the framework's own are in `dsf.api.selector`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether labels match `matchLabels` and `matchExpressions`; an empty selector matches everything."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_meets(requirement, labels) for requirement in selector.get("matchExpressions") or ())


def _meets(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator, values = expression.get("key"), expression.get("operator"), expression.get("values") or ()
    if operator == "In":
        return labels.get(str(key)) in values
    if operator == "NotIn":
        return labels.get(str(key)) not in values
    return (key in labels) is (operator == "Exists")
