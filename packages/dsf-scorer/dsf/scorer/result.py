"""Results of a scoring function: scores and skipped series."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, SupportsFloat


@dataclass(frozen=True, slots=True, init=False)
class Score:
    """One result. A NaN or infinite value is allowed: it is left out of the response and counted.

    The framework uses the labels node, device, namespace, app, pod, container and meta, rounds the value down and
    limits it to -100..100.
    """

    value: float
    labels: dict[str, str]

    def __init__(self, value: SupportsFloat, labels: Mapping[str, str] | None = None) -> None:
        """Raise TypeError when the value is not a number, such as None, text or a bool, or a label is not text.

        The check is here rather than at encoding, so that the traceback shows the line that made the score.
        """
        if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
            msg = f"a score must be a number and not {value!r}; use skip() for a series without a score"
            raise TypeError(msg)
        object.__setattr__(self, "value", float(value))
        object.__setattr__(self, "labels", copy_valid_labels(labels or {}))

    @property
    def is_finite(self) -> bool:
        """True if the framework can use the value."""
        return math.isfinite(self.value)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A series without a score, counted by `reason`: one of a few snake_case words, since reasons are metric labels."""

    reason: str


def copy_valid_labels(labels: Mapping[Any, Any]) -> dict[str, str]:
    """Return a copy of the labels as a dict. Raises TypeError when one is not text."""
    copied_labels = dict(labels)
    for name, value in copied_labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            msg = f"label names and values must be text, not {name!r}: {value!r}"
            raise TypeError(msg)
    return copied_labels
