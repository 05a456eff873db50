"""The registry as ingest and the writer see it: at most a second old, without a round trip per result."""

from __future__ import annotations

import threading
import time
from typing import Generic, TypeVar

import redis
from pydantic import BaseModel, ValidationError

import dsf.log
from dsf import keys
from dsf.store.registry import ClusterRecord, ScorerRecord

#: Seconds after which a change of the registry is seen.
MAX_AGE = 1.0
# An unknown name is looked up at once, for it may be new; but not by everyone who makes names up.
_LEAST_AGE = 0.1

log = dsf.log.get(__name__)

_Record = TypeVar("_Record", bound=BaseModel)


class RegistryCache:
    """Scorers and clusters by name. Methods raise redis.RedisError when Redis cannot be reached."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._lock = threading.Lock()
        self._scorers = _Table(keys.SCORERS, ScorerRecord)
        self._clusters = _Table(keys.CLUSTERS, ClusterRecord)
        self._read_at = float("-inf")

    def scorer(self, name: str) -> ScorerRecord | None:
        """The scorer of this name, or None."""
        self._refresh(MAX_AGE)
        if name not in self._scorers.records:
            self._refresh(_LEAST_AGE)
        return self._scorers.records.get(name)

    def cluster(self, name: str) -> ClusterRecord | None:
        """The cluster of this name, or None."""
        self._refresh(MAX_AGE)
        if name not in self._clusters.records:
            self._refresh(_LEAST_AGE)
        return self._clusters.records.get(name)

    def scorers(self) -> dict[str, ScorerRecord]:
        """All scorers by name."""
        self._refresh(MAX_AGE)
        return self._scorers.records

    def _refresh(self, max_age: float) -> None:
        if time.monotonic() - self._read_at < max_age:
            return
        with self._lock:
            # Another thread may have been faster.
            if time.monotonic() - self._read_at < max_age:
                return
            # Whole tables: one round trip a second for the fleet instead of one per cluster.
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.hgetall(self._scorers.key)
                pipe.hgetall(self._clusters.key)
                scorers, clusters = pipe.execute()
            self._scorers.update(scorers)
            self._clusters.update(clusters)
            self._read_at = time.monotonic()


class _Table(Generic[_Record]):
    """One hash of the registry. Only what changed is parsed again: a fleet has thousands of clusters."""

    def __init__(self, key: str, model: type[_Record]) -> None:
        self.key = key
        self.records: dict[str, _Record] = {}
        self._model = model
        self._texts: dict[str, str] = {}

    def update(self, stored: dict[str, str]) -> None:
        if stored == self._texts:
            return
        records: dict[str, _Record] = {}
        for name, text in stored.items():
            known = self.records.get(name)
            if known is not None and self._texts.get(name) == text:
                records[name] = known
                continue
            try:
                records[name] = self._model.model_validate_json(text)
            except ValidationError as error:
                log.error("registry entry cannot be read", table=self.key, name=name, problems=error.error_count())
        # Replaced in one step: readers hold no lock.
        self.records = records
        self._texts = stored
