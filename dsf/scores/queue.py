"""The pairs that the score writer has to check, in turns of their scorers' namespaces.

The rate of writes is one for the whole hub. Scores of one namespace that change all the time must not make those of
others wait until they expire.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from dsf.scores.failures import Pair

#: Every n-th pair that is taken is of the hub's own namespace.
_OWN_SHARE: Final = 2


class PairQueue:
    """Pairs by the time of their next check, in unix seconds. The class is not thread-safe.

    Every second due pair is of the hub's own namespace, and the others are of all other namespaces in turn; in a
    namespace, the longest waiting comes first.
    """

    def __init__(self, namespace: Callable[[str], str], home: str) -> None:
        """`namespace` returns that of a scorer; `home` is the hub's own."""
        self._namespace = namespace
        self._home = home
        self._due: dict[Pair, float] = {}
        self._heap: list[tuple[float, Pair]] = []
        # Due pairs in order, by namespace; the namespaces in the order of their next turn.
        self._ready: dict[str, dict[Pair, None]] = {}
        self._place: dict[Pair, str] = {}
        self._taken = 0

    def __len__(self) -> int:
        return len(self._due) + len(self._place)

    def add(self, pair: Pair, due: float) -> None:
        """Check a pair at `due`, or earlier if that was planned before; 0: as soon as it has its turn."""
        if pair in self._place:
            return
        if due <= 0:
            self._due.pop(pair, None)
            self._make_ready(pair)
        elif due < self._due.get(pair, float("inf")):
            self._due[pair] = due
            heapq.heappush(self._heap, (due, pair))

    def remove(self, pair: Pair) -> None:
        """Plan no check of a pair."""
        self._due.pop(pair, None)
        self._leave(pair)

    def take(self, now: float, limit: int) -> list[Pair]:
        """At most `limit` due pairs."""
        while self._heap and self._heap[0][0] <= now:
            due, pair = heapq.heappop(self._heap)
            if self._due.get(pair) == due:
                del self._due[pair]
                self._make_ready(pair)
        batch: list[Pair] = []
        while self._ready and len(batch) < limit:
            self._taken += 1
            is_own = self._home in self._ready and (self._taken % _OWN_SHARE == 0 or len(self._ready) == 1)
            name = self._home if is_own else next(name for name in self._ready if name != self._home)
            pair = next(iter(self._ready[name]))
            self._leave(pair)
            if name in self._ready:
                # The others come before its next turn.
                self._ready[name] = self._ready.pop(name)
            batch.append(pair)
        return batch

    def overdue(self, moment: float) -> list[Pair]:
        """All pairs that were due at `moment`."""
        return [*self._place, *(pair for pair, due in self._due.items() if due <= moment)]

    def next_due(self) -> float | None:
        """When the next pair is due; None without any."""
        if self._ready:
            return 0.0
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _make_ready(self, pair: Pair) -> None:
        self._place[pair] = name = self._namespace(pair[1])
        self._ready.setdefault(name, {})[pair] = None

    def _leave(self, pair: Pair) -> None:
        if (name := self._place.pop(pair, None)) is not None:
            del self._ready[name][pair]
            if not self._ready[name]:
                del self._ready[name]
