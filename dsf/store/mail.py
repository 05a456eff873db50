"""The mailboxes of the clusters as the hub sees them: what waits there, and the way into the results queue."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import redis

from dsf import keys
from dsf.messages import PACKING
from dsf.store.client import lua

#: Bytes of one message that can be a result: the shortest has an envelope with a signature.
SHORTEST = 200
#: Bytes in the results queue from which on nothing more is collected.
_MOST_BYTES = 32 * 1024 * 1024
# Clusters that one script looks at: Redis answers no other client meanwhile.
_BATCH = 500


@dataclass(frozen=True)
class Collected:
    """What one collection did."""

    moved: int
    #: Index of the cluster whose turn is next when there was no more room for results, plus the number of clusters if
    #: all of them have had a turn; None when all were moved.
    next: int | None
    #: How many of its slots are empty now, for each cluster, from the first on.
    empty: tuple[int, ...]
    #: Clusters with something in their mailbox that could be no result.
    refused: tuple[str, ...]


class Mail:
    """Methods raise redis.RedisError when Redis cannot be reached; they may then be repeated."""

    def __init__(self, client: redis.Redis, *, queue_limit: int, message_limit: int) -> None:
        """`queue_limit` results may be in the queue, each of at most `message_limit` characters."""
        self._redis = client
        self.queue_limit = queue_limit
        self._longest = message_limit * PACKING
        self._collect = client.register_script(lua("collect"))
        self._find = client.register_script(lua("mail"))
        self._lease = client.register_script(lua("lease"))
        self._token = secrets.token_hex(16)

    def is_ours(self, seconds: float) -> bool:
        """Whether it is this process that is to collect, for so many seconds from now."""
        return bool(self._lease(keys=[keys.COLLECTOR], args=[self._token, round(seconds * 1000)]))

    def give_up(self) -> None:
        """Let another process collect, if it was this one that did."""
        if self._redis.get(keys.COLLECTOR) == self._token:
            self._redis.delete(keys.COLLECTOR)

    def waiting(self) -> list[str]:
        """Registered clusters with something in their mailbox."""
        clusters = sorted(map(str, self._redis.hkeys(keys.CLUSTERS)))
        found: list[str] = []
        for start in range(0, len(clusters), _BATCH):
            batch = clusters[start : start + _BATCH]
            found += map(str, self._find(args=[keys.MAIL_PREFIX, keys.MAIL_SLOTS, *batch]))
        return found

    def room(self) -> int:
        """How many results the queue may get; some of them may still be too many bytes for it."""
        return max(0, self.queue_limit - int(self._redis.llen(keys.RESULTS_QUEUE)))

    def collect(self, slots: Mapping[str, Sequence[int]]) -> Collected:
        """Move what is in these slots of these clusters into the results queue, in turns, while there is room."""
        named = [part for cluster, taken in slots.items() for part in (cluster, " ".join(map(str, taken)))]
        answer: list[object] = self._collect(
            keys=[keys.RESULTS_QUEUE, keys.REJECTED, keys.REJECTED_MAIL],
            args=[self.queue_limit, _MOST_BYTES, SHORTEST, self._longest, keys.MAIL_PREFIX, *named],
        )
        moved, following, empty, *refused = answer
        place = int(str(following))
        counts = tuple(map(int, str(empty).split()))
        return Collected(int(str(moved)), place - 1 if place else None, counts, tuple(map(str, refused)))
