"""Messages between the score writer and the rest of the hub, through Redis.

Results workers count changes of scores by pair and wake the writer. The writer records its counters, and why scores are
not written. Its schedule is in its memory: after a change of leader everything is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import redis

from dsf import keys
from dsf.process.hubclock import hub_time
from dsf.store.client import at_once, batched, lua, parsed, read_factor, whole
from dsf.store.pairs import Unwritten, row_fields
from dsf.store.registry import ClusterRecord, ScorerRecord

#: Field of `Writes.validity_factor` in the writer's counters.
VALIDITY_FACTOR = "validity_factor"
#: Field with the time (unix seconds) at which the writer had completed its newest turn.
TURN_AT = "turn_at"
#: Pairs per round trip where nothing large is read.
_CHUNK = 1000
_LONGEST_MESSAGE = 1000


@dataclass(frozen=True)
class Facts:
    """Redis' data of a pair."""

    #: The scorer's record, None if missing (or removed).
    scorer: ScorerRecord | None
    cluster: ClusterRecord | None
    scheduled: bool
    score: str | None
    failing: int
    #: Items of the score; of one for metrics only, its results.
    items: int

    @classmethod
    def of(cls, cluster_name: str, scorer_name: str, *texts: Any) -> Facts:
        """From Redis' texts: scorer, cluster, entry, row and score."""
        scorer, cluster, entry, row, score = texts
        state = row_fields(keys.pair(cluster_name, scorer_name), row)
        return cls(
            scorer=parsed(ScorerRecord, scorer_name, scorer),
            cluster=parsed(ClusterRecord, cluster_name, cluster),
            scheduled=entry is not None,
            score=score,
            failing=state.get("failing", 0),
            items=state.get("items", 0),
        )


class Writes:
    """Methods raise redis.RedisError if Redis is unreachable."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._unwritten = client.register_script(lua("unwritten"))

    def wait(self, seconds: float) -> None:
        """Wait until a score changes, at most so many seconds."""
        # 0 would be forever.
        self._redis.blpop([keys.WRITES_WAKE], timeout=max(seconds, 0.01))

    def pop_changes(self) -> dict[tuple[str, str], int]:
        """Number of changes of each pair's score since the last call; they are forgotten in Redis."""
        fields, _ = at_once(self._redis, ("HGETALL", keys.WRITES), ("DEL", keys.WRITES))
        counts = dict(zip(fields[::2], fields[1::2], strict=True))
        return {keys.split_pair(pair): whole("changes", pair, count) for pair, count in counts.items()}

    def facts(self, pairs: Iterable[tuple[str, str]]) -> list[Facts]:
        """Facts of pairs, in one round trip."""
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
            answers = pipe.execute(raise_on_error=False)
        for answer in answers[:4]:
            if isinstance(answer, Exception):
                raise answer
        for answer in answers[4:]:
            # An error that passes must not remove a score.
            if isinstance(answer, Exception) and not str(answer).startswith("WRONGTYPE"):
                raise answer
        # A pair whose data is spoilt has no score, and must not stop the others.
        scores = [None if isinstance(answer, Exception) else answer for answer in answers[4:]]
        return [Facts.of(*pair, *texts) for pair, *texts in zip(pair_list, *answers[:4], scores, strict=True)]

    def scheduled_pairs(self) -> list[tuple[str, str]]:
        """(cluster, scorer) of every entry of the schedule."""
        return [keys.split_pair(str(member)) for member in self._redis.hkeys(keys.ENTRIES)]

    def unwritten_pairs(self) -> list[tuple[str, str]]:
        """(cluster, scorer) of every pair whose score is recorded as not written."""
        return [keys.split_pair(str(member)) for member in self._redis.hkeys(keys.UNWRITTEN)]

    def record_unwritten(self, causes: Mapping[tuple[str, str], Unwritten | None]) -> None:
        """Record why scores are not written, or None where that is over, and notify readers of these pairs."""
        for batch in batched(causes.items(), _CHUNK):
            arguments: list[str] = []
            for pair, cause in batch:
                short = cause and cause.model_copy(update={"message": cause.message[:_LONGEST_MESSAGE]})
                arguments += [keys.pair(*pair), "" if short is None else short.model_dump_json()]
            self._unwritten(keys=[keys.UNWRITTEN], args=arguments)

    def record_turn(self, counts: Mapping[str, int]) -> None:
        """Add to the writer's counters, and record that it has completed a turn."""
        added = [("HINCRBY", keys.WRITE_STATS, name, number) for name, number in counts.items()]
        at_once(self._redis, *added, ("HSET", keys.WRITE_STATS, TURN_AT, f"{hub_time(self._redis):.3f}"))

    def validity_factor(self) -> float:
        """Current extension factor of validities; at least 1."""
        text: str | None = self._redis.hget(keys.WRITE_STATS, VALIDITY_FACTOR)  # type: ignore[assignment]
        return read_factor(text)

    def set_validity_factor(self, factor: float) -> None:
        """Set `validity_factor` for ingest and readers."""
        at_once(self._redis, ("HSET", keys.WRITE_STATS, VALIDITY_FACTOR, f"{factor:.3f}"))
