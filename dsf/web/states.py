"""Defines how pages show the states of a pair of scorer and cluster.

Each state has a glyph, because colours alone are not accessible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class State:
    """The glyph and texts of a state. `name` is the value of `dsf.fleet.verdict.Verdict`, also in searches and CSS."""

    name: str
    glyph: str
    label: str
    help: str


#: States by name, those that need attention first.
STATES: Final[Mapping[str, State]] = {
    state.name: state
    for state in (
        State("failing", "✕", "failing", "the newest cycle failed or was lost"),
        State("expired", "◔", "expired", "nothing failed, but no cycle ran until the score expired"),
        State("skipped", "»", "skipped", "its ticks are not sent; the reason says why"),
        State("never", "·", "never ran", "no cycle has succeeded yet"),
        State("paused", "‖", "paused", "a user or its DynamicScorer paused it, or its cluster is gone"),
        State("empty", "○", "empty", "the newest cycle succeeded and brought no items, so there is no score"),
        State("ok", "✓", "ok", "the newest cycle succeeded, and its score may be used"),
    )
}
