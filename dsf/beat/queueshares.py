"""Shares of the clusters' queues by namespace.

More ticks may be due at a time than a queue holds. Therefore the ticks of one namespace never fill a queue: the hub's
own scorers have a reserve, and each other namespace leaves some room.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from dsf.process.shares import has_share

#: Seconds after the last due tick of a namespace after which its share goes to the other namespaces.
_SHARE_SECONDS: Final = 600.0


class QueueShares:
    """Limits the ticks of each namespace in each queue. Counts the ticks that this process has sent."""

    def __init__(self, limit: int, home: str) -> None:
        """`limit` is the maximum number of ticks in a queue, and `home` the hub's own namespace."""
        self._limit = limit
        self._home = home
        # Queue -> namespaces of the last ticks that were sent, the newest first. Waiting ticks are the newest ones.
        self._sent_namespaces: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=limit))
        # Queue -> namespace -> number of its waiting ticks.
        self._waiting_counts: dict[str, Counter[str]] = {}
        # Queue -> namespace -> time of its last due tick (unix seconds).
        self._last_due_times: defaultdict[str, dict[str, float]] = defaultdict(dict)

    def begin(self, lengths: Mapping[str, int], due_ticks: Iterable[tuple[str, str]], now: float) -> None:
        """Begin a batch at `now` (unix seconds).

        `lengths` maps queues to their lengths. `due_ticks` has the queue and the namespace of each due tick.
        """
        self._waiting_counts = {queue: self._count_waiting(queue, length) for queue, length in lengths.items()}
        for queue, namespace in due_ticks:
            self._last_due_times[queue][self._get_share_name(namespace)] = now
        for queue in lengths:
            self._last_due_times[queue] = {
                name: due_at
                for name, due_at in self._last_due_times[queue].items()
                if abs(now - due_at) < _SHARE_SECONDS
            }

    def has_room(self, queue: str, namespace: str) -> bool:
        """True if the namespace may have one more waiting tick in the queue."""
        name = self._get_share_name(namespace)
        return has_share(name, self._waiting_counts[queue], self._limit, self._last_due_times[queue])

    def add(self, queue: str, namespace: str) -> None:
        """Count a tick of the namespace that is sent to the queue."""
        name = self._get_share_name(namespace)
        self._sent_namespaces[queue].appendleft(name)
        self._waiting_counts[queue][name] += 1

    def _count_waiting(self, queue: str, length: int) -> Counter[str]:
        """Return the number of waiting ticks in a queue of this length, by share."""
        counts = Counter(islice(self._sent_namespaces[queue], length))
        # Ticks of other processes, such as those that users requested, count for the hub's own namespace.
        counts[""] += length - counts.total()
        return counts

    def _get_share_name(self, namespace: str) -> str:
        """Return the name of a namespace's share, which is empty for the hub's own namespace."""
        return "" if namespace == self._home else namespace
