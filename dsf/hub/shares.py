"""Equal shares of a number of threads for each namespace: one whose servers hang must not take all."""

from __future__ import annotations

import threading
from collections import Counter

from dsf.backends.protocol import ObjectKey


class Shares:
    """Thread-safe. A key that finds no thread of its namespace free waits here until one is."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        # Namespace -> its keys, those at work, and those that wait, in order.
        self._known: Counter[str] = Counter()
        self._working: Counter[str] = Counter()
        self._waiting: dict[str, dict[ObjectKey, None]] = {}

    def add(self, key: ObjectKey) -> None:
        """A new key."""
        with self._lock:
            self._known[key.namespace] += 1

    def remove(self, key: ObjectKey) -> None:
        """One that was added."""
        with self._lock:
            self._known[key.namespace] -= 1
            if not self._known[key.namespace]:
                del self._known[key.namespace]
            self._waiting.get(key.namespace, {}).pop(key, None)

    def enter(self, key: ObjectKey) -> bool:
        """Whether this key may have a thread now. If not, a `leave` of its namespace returns it."""
        with self._lock:
            share = max(1, self._threads // max(1, len(self._known)))
            if self._working[key.namespace] >= share:
                self._waiting.setdefault(key.namespace, {})[key] = None
                return False
            self._working[key.namespace] += 1
            return True

    def leave(self, key: ObjectKey) -> ObjectKey | None:
        """The end of the work that `enter` allowed; returns the key that has waited longest, if any."""
        with self._lock:
            self._working[key.namespace] -= 1
            waiting = self._waiting.get(key.namespace)
            if not waiting:
                return None
            first = next(iter(waiting))
            del waiting[first]
            return first
