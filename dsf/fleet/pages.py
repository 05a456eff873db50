"""Answers in pages: a fleet has more pairs than a person reads or a client wants at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from dsf import keys


class Page:
    """Some of the sorted pairs, and where to go on."""

    def __init__(self, pairs: Sequence[tuple[str, str]], limit: int | None, after: str | None) -> None:
        """At most `limit` pairs (None: all) after the pair `after`, whether or not that one is still there.

        A pair that comes or goes between two pages moves no other one.
        """
        start = 0 if after is None else bisect_right(pairs, keys.split_pair(after))
        self.pairs = list(pairs[start:][:limit])
        self.total = len(pairs)
        self.continue_ = keys.pair(*self.pairs[-1]) if self.pairs and start + len(self.pairs) < len(pairs) else None
