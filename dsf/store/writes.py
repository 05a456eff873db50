"""Work list of AddOnPlacementScores: due checks, claims by writers, and the backend's content.

A pair is due at its time in the sorted set; a writer claims it with a lease, and a change of the pair meanwhile makes
it due again. A dead writer's lease expires. Times are unix seconds.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from pydantic import BaseModel, ConfigDict

from dsf import keys
from dsf.store.client import at_once, batched, lua, parsed, read_factor, whole
from dsf.store.entries import CLOCK_SKEW
from dsf.store.pairs import row_fields
from dsf.store.registry import ClusterRecord, ScorerRecord

#: Burst of writes before the rate limit applies.
BURST = 5
# Replaces a record: it is unreadable, so the object is written again. Not a deletion: a writer just writing the object
# for the first time could not detect the request to write again. For the same reason each gets a unique suffix: a
# writer may be repairing the previous edit.
_FORGOTTEN = "?"
# Members per command of an audit: it blocks Redis for other clients.
_CHUNK = 1000
#: Seconds for which a failing write is postponed at most.
LONGEST_BACKOFF = 60.0
#: Field of `Writes.validity_factor` in the writer's counters.
VALIDITY_FACTOR = "validity_factor"


class WrittenRecord(BaseModel):
    """The backend's content for one pair."""

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    #: Name of the object; its namespace is the cluster.
    name: str
    #: Hash of everything written but the times.
    digest: str
    valid_until: float
    written_at: float
    #: Since when the object reports up-to-date scores.
    since: float

    def is_ahead(self, now: float) -> bool:
        """Whether the clock of its writer was ahead."""
        return self.written_at > now + CLOCK_SKEW

    @property
    def renew_at(self) -> float:
        """At somewhat more than half of its validity."""
        # Not at a half: a score is up to an interval old when written, so that renewal at half of the rest would happen
        # more than twice per validity.
        return self.written_at + (self.valid_until - self.written_at) * 0.6


@dataclass(frozen=True)
class PairLease:
    """One writer's right to work on a pair until its lease ends."""

    cluster: str
    scorer: str
    lease: float

    @property
    def pair(self) -> str:
        """`<cluster>/<scorer>`."""
        return keys.pair(self.cluster, self.scorer)


@dataclass(frozen=True)
class Finish:
    """The end of the work on a claimed pair: `written` is in the backend now, next check at `next_look`.

    `facts` is the data read: if the record has changed since, or the pair was touched, it is checked again at once.
    `counts` goes into the writer's counters.
    """

    claim: PairLease
    facts: Facts
    now: float
    next_look: float | None
    written: WrittenRecord | None
    counts: Mapping[str, int]

    def row(self) -> list[str | int]:
        """Arguments of the script for this pair."""
        return [
            self.claim.pair,
            _time(self.claim.lease),
            _time(self.now),
            "" if self.next_look is None else _time(self.next_look),
            self.facts.written_text,
            "" if self.written is None else self.written.model_dump_json(),
            self.facts.changes,
            " ".join(f"{name} {amount}" for name, amount in self.counts.items()),
        ]


@dataclass(frozen=True)
class Facts:
    """Redis' data of a claimed pair. Reread for each check, because a change is notified only once."""

    #: None if missing (or removed).
    scorer: ScorerRecord | None
    cluster: ClusterRecord | None
    scheduled: bool
    score: str | None
    failing: int
    #: Items of the score; of one for metrics only, its results.
    items: int
    #: Changes of the desired object since the last check.
    changes: int
    #: Why the last attempt was refused, for the scorer's status; empty if it was not.
    refusal: str
    #: As stored in Redis, and parsed; None if nothing was written or it is unreadable.
    written_text: str
    written: WrittenRecord | None

    @classmethod
    def of(cls, claim: PairLease, *texts: Any) -> Facts:
        """From Redis' texts: scorer, cluster, entry, row, refusal, written record, and (score, changes)."""
        scorer, cluster, entry, row, refusal, written, (score, changes) = texts
        state = row_fields(claim.pair, row)
        # A record of another version is treated as unknown: the object is written again.
        is_known = written and not written.startswith(_FORGOTTEN)
        return cls(
            scorer=parsed(ScorerRecord, claim.scorer, scorer),
            cluster=parsed(ClusterRecord, claim.cluster, cluster),
            scheduled=entry is not None,
            score=score,
            failing=state.get("failing", 0),
            items=state.get("items", 0),
            changes=whole("changes", claim.pair, changes),
            refusal=refusal or "",
            written_text=written or "",
            written=parsed(WrittenRecord, claim.pair, written) if is_known else None,
        )


class Writes:
    """The list of pairs to check. Methods raise redis.RedisError if Redis is unreachable."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._claim = client.register_script(lua("writes_claim"))
        self._finish = client.register_script(lua("writes_finish"))
        self._budget = client.register_script(lua("writes_budget"))

    def touch(self, cluster: str, scorer: str, *, forget_written: bool = False) -> None:
        """Have a pair checked now: its scorer, cluster or object changed.

        With `forget_written` the object is written unconditionally: it was edited or deleted.
        """
        self.touch_all([(cluster, scorer)], forget_written=forget_written)

    def touch_all(self, pairs: Iterable[tuple[str, str]], *, forget_written: bool = False) -> None:
        """`touch` for many pairs, a thousand in one round trip."""
        members = [keys.pair(cluster, scorer) for cluster, scorer in pairs]
        due, forgotten = _time(time.time() - CLOCK_SKEW), _FORGOTTEN + uuid.uuid4().hex
        for batch in batched(members, _CHUNK):
            # LT: an already waiting pair keeps its place.
            commands = [("ZADD", keys.WRITES, "LT", *(part for member in batch for part in (due, member)))]
            if forget_written:
                commands.insert(0, ("HSET", keys.WRITTEN, *(part for member in batch for part in (member, forgotten))))
            at_once(self._redis, *commands)

    def claim(self, now: float, lease_seconds: float, limit: int) -> tuple[list[PairLease], float | None]:
        """At most `limit` due pairs, longest waiting first, and the seconds until the next one is due (None: none)."""
        # Via the text stored in Redis, so that it compares equal later.
        lease = float(_time(now + lease_seconds))
        latest = now + max(lease_seconds, LONGEST_BACKOFF) + CLOCK_SKEW
        answer: list[str] = self._claim(
            keys=[keys.WRITES, keys.WRITE_LEASES], args=[_time(now), _time(lease), limit, _time(latest)]
        )
        claims = [PairLease(*keys.split_pair(member), lease) for member in answer[1:]]
        return claims, float(answer[0]) if answer[0] else None

    def facts(self, claims: Iterable[PairLease]) -> list[Facts]:
        """Facts of claimed pairs, in one round trip."""
        wanted = list(claims)
        if not wanted:
            return []
        pairs = [claim.pair for claim in wanted]
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.hmget(keys.SCORERS, [claim.scorer for claim in wanted])
            pipe.hmget(keys.CLUSTERS, [claim.cluster for claim in wanted])
            for key in (keys.ENTRIES, keys.ROWS, keys.WRITES_REFUSED, keys.WRITTEN):
                pipe.hmget(key, pairs)
            for claim in wanted:
                pipe.hmget(keys.pair_key(claim.cluster, claim.scorer), "score", "changes")
            answers = pipe.execute(raise_on_error=False)
        for answer in answers[:6]:
            if isinstance(answer, Exception):
                raise answer
        for answer in answers[6:]:
            # What may pass must not remove a score.
            if isinstance(answer, Exception) and not str(answer).startswith("WRONGTYPE"):
                raise answer
        # A pair whose data is spoilt has no score, and must not stop the others.
        hashes = [(None, None) if isinstance(answer, Exception) else answer for answer in answers[6:]]
        return [Facts.of(*row) for row in zip(wanted, *answers[:6], hashes, strict=True)]

    def finish_all(self, finishes: Sequence[Finish]) -> None:
        """End the work on these pairs, in one round trip."""
        if finishes:
            pair_keys = [keys.pair_key(finish.claim.cluster, finish.claim.scorer) for finish in finishes]
            self._finish(
                keys=[keys.WRITES, keys.WRITE_LEASES, keys.WRITTEN, keys.WRITE_STATS, keys.WRITES_REFUSED, *pair_keys],
                args=[part for finish in finishes for part in finish.row()],
            )

    def put_back(self, claim: PairLease, now: float) -> None:
        """Release a claimed pair for the next writer, unchanged."""
        at_once(self._redis, ("ZADD", keys.WRITES, _time(now), claim.pair), ("ZREM", keys.WRITE_LEASES, claim.pair))

    def put_off(self, claim: PairLease, until: float) -> None:
        """Writing failed: no writer tries this pair before `until`, even if it changes."""
        at_once(
            self._redis,
            ("ZADD", keys.WRITE_LEASES, _time(until), claim.pair),
            ("ZADD", keys.WRITES, _time(until), claim.pair),
            ("HINCRBY", keys.WRITE_STATS, "failed", 1),
        )

    def note_refusal(self, claim: PairLease, facts: Facts, why: str) -> bool:
        """Record the refusal of this pair's object until a check succeeds; False if already recorded."""
        text = why[:1000]
        if facts.refusal == text:
            return False
        at_once(self._redis, ("HSET", keys.WRITES_REFUSED, claim.pair, text))
        return True

    def take_turn(self, rate: float) -> float:
        """Take a write out of the fleet's rate; returns the seconds to wait before asking again, 0 if it was taken."""
        return float(self._budget(keys=[keys.WRITE_BUDGET], args=[repr(rate), BURST]))

    def validity_factor(self) -> float:
        """Current extension factor of validities; at least 1."""
        text: str | None = self._redis.hget(keys.WRITE_STATS, VALIDITY_FACTOR)  # type: ignore[assignment]
        return read_factor(text)

    def set_validity_factor(self, factor: float) -> None:
        """Set `validity_factor` for every writer, exporter and the hub."""
        at_once(self._redis, ("HSET", keys.WRITE_STATS, VALIDITY_FACTOR, f"{factor:.3f}"))

    def begin_audit(self, every: float) -> bool:
        """Whether this writer must audit now; true for one writer per `every` seconds."""
        milliseconds = int(every * 1000)
        begun, left = at_once(
            self._redis, ("SET", keys.WRITE_AUDIT, "", "NX", "PX", milliseconds), ("PTTL", keys.WRITE_AUDIT)
        )
        if not begun and left > milliseconds + 60_000:
            # No audit is that far away: the clock of Redis was set back.
            at_once(self._redis, ("PEXPIRE", keys.WRITE_AUDIT, milliseconds))
        return bool(begun)

    def written_pairs(self) -> list[tuple[str, str]]:
        """(cluster, scorer) of every object in the backend."""
        return [keys.split_pair(str(member)) for member in self._redis.hkeys(keys.WRITTEN)]

    def any_written(self, pairs: Iterable[tuple[str, str]]) -> bool:
        """Whether the backend has an object of one of these (cluster, scorer)."""
        members = [keys.pair(cluster, scorer) for cluster, scorer in pairs]
        return bool(members) and any(self._redis.hexists(keys.WRITTEN, member) for member in members)

    def unwatched(self, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Those of `pairs` without a scheduled check, or without an entry."""
        watched: set[str] = set()
        for batch in batched((keys.pair(*pair) for pair in pairs), _CHUNK):
            looks = self._redis.zmscore(keys.WRITES, batch)
            watched |= {member for member, look in zip(batch, looks, strict=True) if look is not None}
        watched &= {str(pair) for pair in self._redis.hkeys(keys.ENTRIES)}
        return [pair for pair in pairs if keys.pair(*pair) not in watched]


def _time(moment: float) -> str:
    return f"{moment:.6f}"
