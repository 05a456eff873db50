"""Data that the score writer exchanges with the rest of the hub through Redis.

Results workers count the changes of each pair's score and wake the writer. The writer records its counters, and the
reasons why scores are not written. The writer keeps its schedule in memory only. Therefore the writer of a new leader
compares all scores with the written objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import redis

from dsf import keys
from dsf.process.hubclock import read_hub_time
from dsf.store.client import (
    load_lua,
    parse_counter,
    parse_stored,
    parse_validity_factor,
    run_atomically,
    split_into_batches,
)
from dsf.store.pairs import Unwritten, parse_row_fields
from dsf.store.registry import ClusterRecord, ScorerRecord

#: Field of the writer's counters with the factor that extends validities (`ScoreWriterStore.read_validity_factor`).
VALIDITY_FACTOR_FIELD = "validity_factor"
#: Field of the writer's counters with the time (unix seconds) at which the writer completed its last turn.
TURN_AT_FIELD = "turn_at"
#: Maximum pairs per round trip.
_BATCH_SIZE = 1000
#: Maximum characters of the stored reason why a score is not written.
_MAX_MESSAGE = 1000


@dataclass(frozen=True)
class PairData:
    """The stored data of a pair, from which the score writer decides what to write."""

    #: Records of the scorer and the cluster; None if a record is missing or was removed.
    scorer: ScorerRecord | None
    cluster: ClusterRecord | None
    #: True if the pair has an entry in the schedule.
    scheduled: bool
    #: The stored text of a `PairScore`.
    score: str | None
    #: Number of consecutive failed cycles.
    consecutive_failures: int
    #: Number of items. For a score that goes to metrics only, the number of results.
    item_count: int

    @classmethod
    def parse(
        cls, cluster_name: str, scorer_name: str, *, scorer: Any, cluster: Any, entry: Any, row: Any, score: Any
    ) -> PairData:
        """Parse the stored texts of a pair; None stands for a missing one."""
        state = parse_row_fields(keys.pair(cluster_name, scorer_name), row)
        return cls(
            scorer=parse_stored(ScorerRecord, scorer_name, scorer),
            cluster=parse_stored(ClusterRecord, cluster_name, cluster),
            scheduled=entry is not None,
            score=score,
            consecutive_failures=state.get("failing", 0),
            item_count=state.get("items", 0),
        )


class ScoreWriterStore:
    """Store of the data that the score writer and other processes exchange.

    Methods raise redis.RedisError if Redis is unreachable.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._unwritten_script = client.register_script(load_lua("unwritten"))

    def wait_for_change(self, seconds: float) -> None:
        """Wait until a score changes, for at most `seconds`."""
        # A timeout of 0 would wait for ever.
        self._redis.blpop([keys.WRITES_WAKE], timeout=max(seconds, 0.01))

    def pop_changes(self) -> dict[tuple[str, str], int]:
        """Return the number of changes of each pair's score since the last call, and reset them."""
        fields, _ = run_atomically(self._redis, ("HGETALL", keys.WRITES), ("DEL", keys.WRITES))
        counts = dict(zip(fields[::2], fields[1::2], strict=True))
        return {keys.split_pair(pair): parse_counter("changes", pair, count) for pair, count in counts.items()}

    def read_pair_data(self, pairs: Iterable[tuple[str, str]]) -> list[PairData]:
        """Return the data of each pair, read in one round trip."""
        pair_list = list(pairs)
        if not pair_list:
            return []
        names = [keys.pair(*pair) for pair in pair_list]
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.hmget(keys.SCORERS, [scorer for _, scorer in pair_list])
            pipe.hmget(keys.CLUSTERS, [cluster for cluster, _ in pair_list])
            pipe.hmget(keys.ENTRIES, names)
            pipe.hmget(keys.ROWS, names)
            for pair in pair_list:
                pipe.hget(keys.pair_key(*pair), "score")
            responses = pipe.execute(raise_on_error=False)
        for response in responses[:4]:
            if isinstance(response, Exception):
                raise response
        for response in responses[4:]:
            # Redis replies WRONGTYPE if the stored data are damaged. Raise any other error, which may be temporary:
            # without a score, the writer would remove the object.
            if isinstance(response, Exception) and not str(response).startswith("WRONGTYPE"):
                raise response
        # Treat a damaged score as missing, so that it does not block the other pairs.
        scores = [None if isinstance(response, Exception) else response for response in responses[4:]]
        return [
            PairData.parse(*pair, scorer=scorer, cluster=cluster, entry=entry, row=row, score=score)
            for pair, scorer, cluster, entry, row, score in zip(pair_list, *responses[:4], scores, strict=True)
        ]

    def list_scheduled_pairs(self) -> list[tuple[str, str]]:
        """Return (cluster, scorer) of every entry in the schedule."""
        return [keys.split_pair(str(member)) for member in self._redis.hkeys(keys.ENTRIES)]

    def list_unwritten_pairs(self) -> list[tuple[str, str]]:
        """Return (cluster, scorer) of every pair whose score is recorded as not written."""
        return [keys.split_pair(str(member)) for member in self._redis.hkeys(keys.UNWRITTEN)]

    def record_unwritten(self, causes: Mapping[tuple[str, str], Unwritten | None]) -> None:
        """Record why scores are not written, and notify readers of changed pairs. A cause of None removes a record."""
        for batch in split_into_batches(causes.items(), _BATCH_SIZE):
            arguments: list[str] = []
            for pair, cause in batch:
                shortened_cause = cause and cause.model_copy(update={"message": cause.message[:_MAX_MESSAGE]})
                arguments += [keys.pair(*pair), "" if shortened_cause is None else shortened_cause.model_dump_json()]
            self._unwritten_script(keys=[keys.UNWRITTEN], args=arguments)

    def record_pass(self, counts: Mapping[str, int]) -> None:
        """Add to the writer's counters, and record the completed pass."""
        increments = [("HINCRBY", keys.WRITE_STATS, name, number) for name, number in counts.items()]
        run_atomically(
            self._redis, *increments, ("HSET", keys.WRITE_STATS, TURN_AT_FIELD, f"{read_hub_time(self._redis):.3f}")
        )

    def read_validity_factor(self) -> float:
        """Return the factor that extends validities, which is at least 1; 1 if none is stored."""
        text: str | None = self._redis.hget(keys.WRITE_STATS, VALIDITY_FACTOR_FIELD)  # type: ignore[assignment]
        return parse_validity_factor(text)

    def set_validity_factor(self, factor: float) -> None:
        """Store the factor that extends validities, for ingestion and readers."""
        run_atomically(self._redis, ("HSET", keys.WRITE_STATS, VALIDITY_FACTOR_FIELD, f"{factor:.3f}"))
