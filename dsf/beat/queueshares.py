"""Shares of the clusters' queues by namespace.

An agent takes ticks as fast as it can, but more ticks may be due at a moment than a queue holds. Therefore the ticks of
one namespace never fill a queue: the hub's own scorers have a reserve, and each other namespace leaves some room.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from dsf.process.shares import has_share

#: Seconds after which a namespace without due ticks may be forgotten; its share then goes to the others.
REMEMBERED: Final = 600.0


class QueueShares:
    """The namespaces of the ticks that wait in the queues, as far as this process has sent them."""

    def __init__(self, limit: int, home: str) -> None:
        """A queue holds `limit` ticks; `home` is the hub's own namespace."""
        self._limit = limit
        self._home = home
        # Queue -> namespaces of the last ticks, the newest first: the ticks that wait in a queue were sent last.
        self._sent: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=limit))
        # Queue -> number of its waiting ticks, by namespace.
        self._waiting: dict[str, Counter[str]] = {}
        # Queue -> namespace -> when it last had due ticks.
        self._present: defaultdict[str, dict[str, float]] = defaultdict(dict)

    def begin(self, lengths: Mapping[str, int], due: Iterable[tuple[str, str]], now: float) -> None:
        """Begin a batch: queues with their lengths, and the queue and namespace of each due tick."""
        self._waiting = {queue: self._count(queue, length) for queue, length in lengths.items()}
        for queue, namespace in due:
            self._present[queue][self._name(namespace)] = now
        for queue in lengths:
            self._present[queue] = {name: at for name, at in self._present[queue].items() if abs(now - at) < REMEMBERED}

    def has_room(self, queue: str, namespace: str) -> bool:
        """True if one more tick of a namespace may wait in a queue."""
        return has_share(self._name(namespace), self._waiting[queue], self._limit, self._present[queue])

    def add(self, queue: str, namespace: str) -> None:
        """Count a tick that is sent."""
        name = self._name(namespace)
        self._sent[queue].appendleft(name)
        self._waiting[queue][name] += 1

    def _count(self, queue: str, length: int) -> Counter[str]:
        waiting = Counter(islice(self._sent[queue], length))
        # Ticks of another process, such as those of people.
        waiting[""] += length - waiting.total()
        return waiting

    def _name(self, namespace: str) -> str:
        """Return the name of a share; that of the hub's own namespace is empty."""
        return "" if namespace == self._home else namespace
