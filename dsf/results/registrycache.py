"""Registry cache for ingestion: at most a second old, without a round trip per result."""

from __future__ import annotations

import threading
import time
from typing import Generic, TypeVar

import redis

from dsf import keys
from dsf.store.registry import ClusterRecord, ScorerRecord, read_record
from dsf.store.writes import VALIDITY_FACTOR, read_factor

#: Max. seconds until a registry change is seen.
MAX_AGE = 1.0

_Record = TypeVar("_Record", ScorerRecord, ClusterRecord)


class RegistryCache:
    """Scorers and clusters by name. Methods raise redis.RedisError if Redis is unreachable."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._lock = threading.Lock()
        self._scorers = _Table(keys.SCORERS, ScorerRecord)
        self._clusters = _Table(keys.CLUSTERS, ClusterRecord)
        self._factor = 1.0
        self._read_at = float("-inf")

    def scorer(self, name: str) -> ScorerRecord | None:
        """The scorer of this name, or None. A new one is found at once."""
        return self._one(self._scorers, name)

    def cluster(self, name: str) -> ClusterRecord | None:
        """The cluster of this name, or None. A new one is found at once."""
        return self._one(self._clusters, name)

    def validity_factor(self) -> float:
        """Current extension factor of validities."""
        self._refresh()
        return self._factor

    def _one(self, table: _Table[_Record], name: str) -> _Record | None:
        self._refresh()
        if name in table.texts:
            return table.records.get(name)
        # Its first result may come within that second; refusing it would delay the first score by a cycle.
        text: str | None = self._redis.hget(table.key, name)  # type: ignore[assignment]
        return read_record(table.model, name, text)

    def _refresh(self) -> None:
        if time.monotonic() - self._read_at < MAX_AGE:
            return
        with self._lock:
            # Another thread may have been faster.
            if time.monotonic() - self._read_at < MAX_AGE:
                return
            # Whole tables: one round trip a second for the fleet instead of one per cluster.
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.hgetall(self._scorers.key)
                pipe.hgetall(self._clusters.key)
                pipe.hget(keys.WRITE_STATS, VALIDITY_FACTOR)
                scorers, clusters, factor = pipe.execute()
            self._scorers.update(scorers)
            self._clusters.update(clusters)
            self._factor = read_factor(factor)
            self._read_at = time.monotonic()


class _Table(Generic[_Record]):
    """One hash of the registry. Only changes are reparsed: a fleet has thousands of clusters."""

    def __init__(self, key: str, model: type[_Record]) -> None:
        self.key = key
        self.model: type[_Record] = model
        #: As stored; unreadable ones are in `texts` only.
        self.texts: dict[str, str] = {}
        self.records: dict[str, _Record] = {}

    def update(self, stored: dict[str, str]) -> None:
        if stored == self.texts:
            return
        records: dict[str, _Record] = {}
        for name, text in stored.items():
            known = self.records.get(name)
            record = known if self.texts.get(name) == text else read_record(self.model, name, text)
            if record is not None:
                records[name] = record
        # Replaced atomically: readers hold no lock.
        self.records = records
        self.texts = stored
