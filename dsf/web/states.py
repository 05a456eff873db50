"""The words for how one scorer does on one cluster. Each has a glyph, so that colour is never alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class State:
    """One word. `name` is what the search box and the style sheet know it by."""

    name: str
    glyph: str
    word: str
    help: str


_ALL: Final = (
    State("failing", "✕", "failing", "the newest cycle failed or was lost"),
    State("expired", "◔", "expired", "nothing failed, but no cycle ran until the score expired"),
    State("skipped", "»", "skipped", "its ticks are not sent; the reason says why"),
    State("never", "·", "never ran", "no cycle has ended yet"),
    State("paused", "‖", "paused", "somebody paused it, or its DynamicScorer says suspend"),
    State("empty", "○", "empty", "the newest cycle succeeded and brought no items, so there is no score"),
    State("ok", "✓", "ok", "the newest cycle succeeded, and its score may be used"),
)
#: By name, what needs a person first.
STATES: Final[Mapping[str, State]] = {state.name: state for state in _ALL}
#: Rank of a state by name: what needs a person has the lowest.
RANK: Final[Mapping[str, int]] = {state.name: rank for rank, state in enumerate(_ALL)}
