"""The queue of pairs that the score writer checks, served round-robin by namespace of the scorer.

All namespaces share the write rate of the hub. Scores in one namespace that change all the time must not delay the
scores of other namespaces until they expire.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from dsf.scores.failures import Pair

#: Every n-th pair is taken from the hub's own namespace.
_OWN_NAMESPACE_EVERY: Final = 2


class PairQueue:
    """A queue of pairs, ordered by the time of their next check (unix seconds). Instances are not thread-safe.

    Every second due pair comes from the hub's own namespace, and the remaining pairs from all other namespaces in turn.
    Within a namespace, the pair that has waited longest comes first.
    """

    def __init__(self, find_namespace: Callable[[str], str], home: str) -> None:
        """`find_namespace` returns the namespace of a scorer; `home` is the hub's own namespace."""
        self._find_namespace = find_namespace
        self._home = home
        self._due_times: dict[Pair, float] = {}
        self._heap: list[tuple[float, Pair]] = []
        # Namespace -> its due pairs in order. The namespaces are in the order in which they are served.
        self._ready_pairs: dict[str, dict[Pair, None]] = {}
        # Due pair -> its namespace.
        self._ready_namespaces: dict[Pair, str] = {}
        self._take_count = 0

    def __len__(self) -> int:
        return len(self._due_times) + len(self._ready_namespaces)

    def add(self, pair: Pair, due_at: float) -> None:
        """Schedule a check of a pair at `due_at`, unless an earlier one is scheduled; 0 makes it due now."""
        if pair in self._ready_namespaces:
            return
        if due_at <= 0:
            self._due_times.pop(pair, None)
            self._make_ready(pair)
        elif due_at < self._due_times.get(pair, float("inf")):
            self._due_times[pair] = due_at
            heapq.heappush(self._heap, (due_at, pair))

    def remove(self, pair: Pair) -> None:
        """Cancel the scheduled check of a pair."""
        self._due_times.pop(pair, None)
        self._remove_ready(pair)

    def take(self, now: float, limit: int) -> list[Pair]:
        """Remove and return up to `limit` due pairs."""
        while self._heap and self._heap[0][0] <= now:
            due_at, pair = heapq.heappop(self._heap)
            if self._due_times.get(pair) == due_at:
                del self._due_times[pair]
                self._make_ready(pair)
        batch: list[Pair] = []
        while self._ready_pairs and len(batch) < limit:
            self._take_count += 1
            is_home_turn = self._home in self._ready_pairs and (
                self._take_count % _OWN_NAMESPACE_EVERY == 0 or len(self._ready_pairs) == 1
            )
            namespace = self._home if is_home_turn else next(name for name in self._ready_pairs if name != self._home)
            pair = next(iter(self._ready_pairs[namespace]))
            self._remove_ready(pair)
            if namespace in self._ready_pairs:
                # Move the namespace behind all others.
                self._ready_pairs[namespace] = self._ready_pairs.pop(namespace)
            batch.append(pair)
        return batch

    def list_overdue(self, moment: float) -> list[Pair]:
        """Return all pairs that were due at `moment`."""
        return [*self._ready_namespaces, *(pair for pair, due_at in self._due_times.items() if due_at <= moment)]

    def get_next_due(self) -> float | None:
        """Return the time at which the next pair is due; None if the queue is empty."""
        if self._ready_pairs:
            return 0.0
        while self._heap and self._due_times.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _make_ready(self, pair: Pair) -> None:
        self._ready_namespaces[pair] = namespace = self._find_namespace(pair[1])
        self._ready_pairs.setdefault(namespace, {})[pair] = None

    def _remove_ready(self, pair: Pair) -> None:
        if (namespace := self._ready_namespaces.pop(pair, None)) is not None:
            del self._ready_pairs[namespace][pair]
            if not self._ready_pairs[namespace]:
                del self._ready_pairs[namespace]
