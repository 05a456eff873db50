"""The registry of scorers and clusters, for components without access to the hub's objects.

The hub controller writes it. The results worker, the page and the command line read it. It contains no URLs and no
secrets, so that an intruder in Redis can neither learn nor change where an agent sends its tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import redis
from pydantic import BaseModel, ConfigDict, Field

from dsf import keys
from dsf.api.expressions import ScoreInput
from dsf.api.scorerule import ScoreRule
from dsf.errors import UnknownClusterError, UnknownScorerError
from dsf.store.client import parse_all_stored, parse_stored, run_atomically

#: Maximum scorers that are written in one round trip.
_BATCH_SIZE: Final = 250


class ScorerRecord(ScoreRule):
    """A registered scorer: the rule for its scores, and data for display."""

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    #: metadata.name and metadata.namespace of the DynamicScorer.
    name: str
    namespace: str = ""
    description: str = ""
    location: str = "Internal"
    #: Seconds between two cycles.
    interval: int = Field(ge=1)
    #: Seconds of a score's validity.
    validity: int = Field(ge=1)
    #: Fleet-wide limit, e.g. `10/s`, or none.
    rate_limit: str | None = None
    #: Series of the scorer in the fleet's metrics. An empty string exposes as many as the limits allow.
    exposition: Literal["", "items", "pair", "none"] = ""
    suspended: bool = False
    health: Literal["Active", "Inactive", "Unknown"] = "Active"
    #: Why the scorer runs on no cluster, as `<reason>: <sentence>`; empty if it can run.
    problem: str = ""
    #: The scores that its expression combines.
    inputs: tuple[ScoreInput, ...] = ()
    #: Maximum bytes in Redis of the scores of its namespace; 0 sets no limit.
    score_room: int = Field(default=0, ge=0)


class ClusterRecord(BaseModel):
    """A managed cluster accepted by the hub."""

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    name: str
    #: uid of the ManagedCluster, for owner references; empty when unknown.
    uid: str = ""
    #: Ids of accepted signing keys: the current one and, during a rotation, the previous one.
    key_ids: tuple[int, ...] = (1,)
    #: Creation time of the current signing key in unix seconds; 0 if unknown.
    key_since: float = 0.0


class Registry:
    """Reads and writes the records. Methods raise redis.RedisError if Redis is unreachable."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def put_scorer(self, record: ScorerRecord) -> bool:
        """Write a scorer. Return True if it changed."""
        return self._put(keys.SCORERS, record)

    def put_scorers(self, records: Sequence[ScorerRecord]) -> dict[str, redis.RedisError]:
        """Write many scorers in few round trips. Return the errors of the scorers that Redis refuses, by name."""
        refusals: dict[str, redis.RedisError] = {}
        for start in range(0, len(records), _BATCH_SIZE):
            batch = records[start : start + _BATCH_SIZE]
            commands = [("HSET", keys.SCORERS, record.name, record.model_dump_json()) for record in batch]
            responses = run_atomically(self._redis, *commands, raise_command_errors=False)
            for record, response in zip(batch, responses, strict=True):
                if isinstance(response, redis.RedisError):
                    refusals[record.name] = response
        return refusals

    def remove_scorer(self, name: str) -> bool:
        """Remove a scorer. Return True if it existed."""
        return bool(self._redis.hdel(keys.SCORERS, name))

    def read_scorer(self, name: str) -> ScorerRecord:
        """Return the record of a scorer, by the DynamicScorer's name. Raises UnknownScorerError."""
        if (record := parse_stored(ScorerRecord, name, self._redis.hget(keys.SCORERS, name))) is not None:
            return record
        raise UnknownScorerError(f"no scorer {name!r} runs; registered: {_list_names(self.read_scorers())}")

    def read_scorers(self) -> dict[str, ScorerRecord]:
        """Return all scorers by name."""
        return parse_all_stored(ScorerRecord, self._redis.hgetall(keys.SCORERS))

    def put_cluster(self, record: ClusterRecord) -> bool:
        """Write a cluster. Return True if it changed."""
        return self._put(keys.CLUSTERS, record)

    def remove_cluster(self, name: str) -> bool:
        """Remove a cluster. Return True if it existed."""
        return bool(self._redis.hdel(keys.CLUSTERS, name))

    def read_cluster(self, name: str) -> ClusterRecord:
        """Return the record of a cluster. Raises UnknownClusterError."""
        if (record := parse_stored(ClusterRecord, name, self._redis.hget(keys.CLUSTERS, name))) is not None:
            return record
        raise UnknownClusterError(f"no cluster {name!r} is accepted; registered: {_list_names(self.read_clusters())}")

    def read_clusters(self) -> dict[str, ClusterRecord]:
        """Return all clusters by name."""
        return parse_all_stored(ClusterRecord, self._redis.hgetall(keys.CLUSTERS))

    def _put(self, key: str, record: ScorerRecord | ClusterRecord) -> bool:
        text = record.model_dump_json()
        if self._redis.hget(key, record.name) == text:
            return False
        run_atomically(self._redis, ("HSET", key, record.name, text))
        return True


def _list_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
