"""Divides the clusters' queues among the namespaces of scorers.

More ticks may be due at a time than fit into a queue. Therefore the ticks of one namespace cannot fill a queue: the
hub's own scorers have a reserve, and each other namespace has a limit that leaves a part of the queue free.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from dsf.process.shares import has_share

#: Seconds without due ticks after which the share of a namespace goes to the other namespaces.
_SHARE_SECONDS: Final = 600.0


class QueueShares:
    """Limits the waiting ticks of each namespace in each queue.

    Knows the namespaces of the ticks that this process has sent. Other ticks count for the hub's own namespace.
    """

    def __init__(self, limit: int, home: str) -> None:
        """`limit` is the maximum number of ticks in a queue, and `home` the hub's own namespace."""
        self._limit = limit
        self._home = home
        # Queue -> namespaces of the last ticks that were sent, newest first. The newest ones are still waiting.
        self._sent_namespaces: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=limit))
        # Queue -> namespace -> number of its waiting ticks.
        self._waiting_counts: dict[str, Counter[str]] = {}
        # Queue -> namespace -> time of its last due tick (unix seconds).
        self._last_due_times: defaultdict[str, dict[str, float]] = defaultdict(dict)

    def begin_batch(self, lengths: Mapping[str, int], due_ticks: Iterable[tuple[str, str]], now: float) -> None:
        """Begin a batch at `now` (unix seconds).

        `lengths` maps each queue of the batch to its length. `due_ticks` contains the queue and the namespace of each
        due tick.
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

    def may_enqueue(self, queue: str, namespace: str) -> bool:
        """True if one more tick of the namespace may wait in the queue."""
        name = self._get_share_name(namespace)
        return has_share(name, self._waiting_counts[queue], self._limit, self._last_due_times[queue])

    def add_tick(self, queue: str, namespace: str) -> None:
        """Count a tick of the namespace that is sent to the queue."""
        name = self._get_share_name(namespace)
        self._sent_namespaces[queue].appendleft(name)
        self._waiting_counts[queue][name] += 1

    def _count_waiting(self, queue: str, length: int) -> Counter[str]:
        """Return the numbers of waiting ticks in a queue of this length, by share."""
        counts = Counter(islice(self._sent_namespaces[queue], length))
        # Count ticks of other processes, such as those that users request, for the hub's own namespace.
        counts[""] += length - counts.total()
        return counts

    def _get_share_name(self, namespace: str) -> str:
        """Return the name of a namespace's share, which is empty for the hub's own namespace."""
        return "" if namespace == self._home else namespace
