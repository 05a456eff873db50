"""Maintains the read model: the state of every pair, indexed, so that readers never read all pairs.

Ingest and the sweeper of lost runs update a pair's index in the script that changes its books. Beat, the hub controller
and users only *mark* a pair; the results workers' sweeper processes marks every second. `lua/model.lua` describes the
data, `dsf.keys` its keys.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final

import redis

from dsf import keys
from dsf.store.client import at_once, batched, lua
from dsf.store.entries import ALL_CLUSTERS, Entry, Override, effective, read, scorer_target
from dsf.store.slots import CLOCK_SKEW

#: Version of the model. Another number makes the results workers recount all pairs.
VERSION: Final = "1"
#: An index score is the rank of a state * SPAN + a time (unix seconds); lua/model.lua has the same number.
SPAN: Final = 10_000_000_000
#: States by rank, worst first.
RANKS: Final = ("failing", "expired", "skipped", "never", "paused", "empty", "ok")

# Pairs judged per script call: it blocks Redis for other clients.
_BATCH = 200
# Milliseconds after which another worker takes over the model.
_LEASE = 10_000
# Batches per turn.
_TURNS = 25


class ModelKeeper:
    """Processes marked pairs and changes caused by time. Only one worker does so at a time.

    Methods raise redis.RedisError if Redis is unreachable; they may then be repeated.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._token = secrets.token_hex(8)
        self._lease = client.register_script(lua("lease"))
        self._judge = client.register_script(lua("judge"))
        self._lapse = client.register_script(lua("lapse"))
        self._recount = client.register_script(lua("recount"))

    def turn(self, now: float) -> bool:
        """One pass at `now` (unix seconds); returns whether there is more to do."""
        # Two workers judging the same mark could remove a newer one.
        if not self._lease(keys=[keys.MODEL_KEEPER], args=[self._token, _LEASE]):
            return False
        if self._redis.get(keys.MODEL_VERSION) != VERSION:
            # First start after an upgrade, or on request.
            self._recount(keys=[keys.MODEL_VERSION, keys.ENTRIES, keys.MODEL_SCORERS], args=[VERSION])
        lapsed = int(self._lapse(keys=[keys.MODEL_SCORERS, keys.WRITES], args=[f"{now:.6f}", _BATCH, int(CLOCK_SKEW)]))
        for _ in range(_TURNS):
            marks = _pairs(self._redis.hrandfield(keys.MODEL_MARKED, _BATCH, withvalues=True))
            if not marks:
                return lapsed >= _BATCH
            self._look(marks, now)
        return True

    def forget_lags(self) -> None:
        """Remove beat's counters of removed scorers."""
        known = {str(name) for name in self._redis.hkeys(keys.SCORERS)}
        fields = [str(name) for name in self._redis.hkeys(keys.BEAT_LAGS)]
        gone = [field for field in fields if field.rpartition(":")[0] not in known]
        if gone:
            self._redis.hdel(keys.BEAT_LAGS, *gone)

    def _look(self, marks: Mapping[str, str], now: float) -> None:
        for target, mark in marks.items():
            cluster, scorer = keys.split_pair(target)
            if cluster == ALL_CLUSTERS:
                self._spread(scorer, target, mark)
        pairs = [pair for pair in marks if keys.split_pair(pair)[0] != ALL_CLUSTERS]
        if not pairs:
            return
        targets = [*pairs, *{scorer_target(keys.split_pair(pair)[1]) for pair in pairs}]
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.hmget(keys.ENTRIES, pairs)
            pipe.hmget(keys.OVERRIDES, targets)
            texts, said = pipe.execute()
        read_overrides = {
            target: read(Override, target, text) for target, text in zip(targets, said, strict=True) if text
        }
        overrides = {target: one for target, one in read_overrides.items() if one is not None}
        rows: list[str] = []
        for pair, text in zip(pairs, texts, strict=True):
            entry = read(Entry, pair, text) if text else None
            rows += [pair, marks[pair], pause_of(entry, overrides, now)]
        self._judge(keys=[keys.ENTRIES, keys.MODEL_MARKED], args=[f"{now:.6f}", *rows])

    def _spread(self, scorer: str, target: str, mark: str) -> None:
        """Mark each pair of a scorer changed on all clusters."""
        clusters: Iterable[Any] = self._redis.zrange(keys.model_states(scorer), 0, -1)
        for batch in batched(clusters, 1000):
            marks = (("HINCRBY", keys.MODEL_MARKED, keys.pair(str(cluster), scorer), 1) for cluster in batch)
            at_once(self._redis, *marks)
        # By the script, which keeps a mark newer than the one read.
        self._judge(keys=[keys.ENTRIES, keys.MODEL_MARKED], args=["0", target, mark, "runs"])


def pause_of(entry: Entry | None, overrides: Mapping[str, Override], now: float) -> str:
    """Manual pause state: `runs`, `paused`, or until when (unix seconds).

    A pair that cannot run (scoring API down) is not paused: beat skips it with that reason.
    """
    if entry is None:
        return "runs"
    wanted = effective(entry.model_copy(update={"runnable": True}), overrides, now)
    if not wanted.paused:
        return "runs"
    return "paused" if wanted.paused_until is None else f"{wanted.paused_until:.6f}"


def recount(client: redis.Redis) -> None:
    """Have the results workers recount all pairs; `is_whole` tells when done. Raises redis.RedisError."""
    client.delete(keys.MODEL_VERSION)


def is_whole(client: redis.Redis) -> bool:
    """Whether the model is of this version and nothing is marked. Raises redis.RedisError."""
    return client.get(keys.MODEL_VERSION) == VERSION and not client.exists(keys.MODEL_MARKED)


def _pairs(answer: Any) -> dict[str, str]:
    """HRANDFIELD's reply in either protocol version."""
    if answer and isinstance(answer[0], list | tuple):
        return {str(name): str(value) for name, value in answer}
    return {str(name): str(value) for name, value in zip(answer[::2], answer[1::2], strict=True)} if answer else {}
