"""Shares of the memory for the last results of all scorers, by namespace.

An agent keeps the last results of each scorer, for its /metrics and for composites. Without a limit, some scorers of
one namespace would fill the memory of all.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dsf.api.scoringresponse import ScoringResult

#: Estimated bytes of all results that an agent keeps: a quarter of the chart's memory limit.
MAX_BYTES: Final = 128 * 1024 * 1024
#: Estimated bytes of one result without its texts. The agent stores it as a result and as label values of /metrics.
_RESULT_BYTES: Final = 800


class ResultMemory:
    """Decides whether the results of a scorer are kept. Thread-safe."""

    def __init__(self, namespaces: Callable[[], Mapping[str, str]], max_bytes: int = MAX_BYTES) -> None:
        """`namespaces` returns the namespace of each scorer here, empty for the hub's own."""
        self._namespaces = namespaces
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        # Scorer -> estimated bytes of its results.
        self._sizes: dict[str, int] = {}

    def reserve(self, scorer: str, results: Sequence[ScoringResult]) -> bool:
        """Reserve memory for a scorer's new results, which replace its last ones. Return False if there is not enough.

        The hub's own namespace may use all free memory. Each other namespace must leave as much memory free as it uses,
        unless it is the only one on the cluster.
        """
        size = sum(_RESULT_BYTES + 2 * sum(map(len, result.labels.values())) for result in results)
        namespaces = self._namespaces()
        with self._lock:
            self._sizes = {
                name: reserved_bytes
                for name, reserved_bytes in self._sizes.items()
                if name in namespaces and name != scorer
            }
            bytes_by_namespace: Counter[str] = Counter()
            for name, reserved_bytes in self._sizes.items():
                bytes_by_namespace[namespaces[name]] += reserved_bytes
            namespace = namespaces.get(scorer, "")
            free_bytes = self._max_bytes - bytes_by_namespace.total() - size
            is_shared = bool(namespace) and len(set(namespaces.values())) > 1
            if free_bytes < (bytes_by_namespace[namespace] + size if is_shared else 0):
                return False
            self._sizes[scorer] = size
            return True
