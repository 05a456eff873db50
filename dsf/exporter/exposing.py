"""Selects the exposed series of each scorer: by its own setting, else within the limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from dsf.store.registry import ScorerRecord

Level = Literal["items", "pair", "none"]
#: Series of one scorer on one cluster without its items: two of requests, six of stages, two of times, two of
#: schedules, six of outcomes.
PER_PAIR: Final = 18


class SeriesBudget:
    """Decides for scorers without a setting. It remembers what the last scrape left out."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._has_pairs = True
        self._has_items = True

    def for_pairs(self, pairs: int) -> bool:
        """Whether there is room for the series of this many pairs."""
        self._has_pairs = _fits(PER_PAIR * pairs, self.limit, self._has_pairs)
        return self._has_pairs

    def for_items(self, pairs: int, items: int) -> bool:
        """Whether there is room for those of the items too."""
        self._has_items = self._has_pairs and _fits(PER_PAIR * pairs + items, self.limit, self._has_items)
        return self._has_items


def declared_levels(records: Mapping[str, ScorerRecord]) -> dict[str, Level]:
    """The levels that scorers declare themselves."""
    return {name: record.exposition for name, record in records.items() if record.exposition != ""}


def _fits(wanted: int, limit: int, had: bool) -> bool:
    # Hysteresis: omitted series come back when they need somewhat less than the limit.
    return wanted <= (limit if had else limit * 0.9)
