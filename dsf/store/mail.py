"""The hub's side of the clusters' mailboxes: waiting results, and their move into the results queue."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import redis

from dsf import keys
from dsf.messages import PACKING
from dsf.store.client import lua

#: Min. bytes of a result message: the shortest has an envelope with a signature.
SHORTEST = 200
#: Bytes in the results queue from which collection stops.
_MOST_BYTES = 32 * 1024 * 1024
# Clusters per script call: it blocks Redis for other clients.
_BATCH = 500


@dataclass(frozen=True)
class Collected:
    """Result of one collection."""

    moved: int
    #: Index of the next cluster if there was no more room for results, plus the number of clusters if all have had a
    #: turn; None if all were moved.
    next: int | None
    #: Number of emptied leading slots, for each cluster.
    empty: tuple[int, ...]
    #: Clusters with an invalid message in their mailbox.
    refused: tuple[str, ...]


class Mail:
    """Methods raise redis.RedisError if Redis is unreachable; they may then be repeated."""

    def __init__(self, client: redis.Redis, *, queue_limit: int, message_limit: int) -> None:
        """The queue takes `queue_limit` results of at most `message_limit` characters each."""
        self._redis = client
        self.queue_limit = queue_limit
        self._longest = message_limit * PACKING
        self._collect = client.register_script(lua("collect"))
        self._find = client.register_script(lua("mail"))
        self._lease = client.register_script(lua("lease"))
        self._token = secrets.token_hex(16)

    def is_ours(self, seconds: float) -> bool:
        """Whether this process collects; takes or extends its lease for `seconds`."""
        return bool(self._lease(keys=[keys.COLLECTOR], args=[self._token, round(seconds * 1000)]))

    def give_up(self) -> None:
        """Release the lease if this process holds it."""
        if self._redis.get(keys.COLLECTOR) == self._token:
            self._redis.delete(keys.COLLECTOR)

    def waiting(self) -> list[str]:
        """Registered clusters with a non-empty mailbox."""
        clusters = sorted(map(str, self._redis.hkeys(keys.CLUSTERS)))
        found: list[str] = []
        for start in range(0, len(clusters), _BATCH):
            batch = clusters[start : start + _BATCH]
            found += map(str, self._find(args=[keys.MAIL_PREFIX, keys.MAIL_SLOTS, *batch]))
        return found

    def room(self) -> int:
        """Number of results that the queue can take; its limit of bytes may allow fewer."""
        return max(0, self.queue_limit - int(self._redis.llen(keys.RESULTS_QUEUE)))

    def collect(self, slots: Mapping[str, Sequence[int]]) -> Collected:
        """Move these slots of these clusters into the results queue, round-robin, while there is room."""
        named = [part for cluster, taken in slots.items() for part in (cluster, " ".join(map(str, taken)))]
        answer: list[object] = self._collect(
            keys=[keys.RESULTS_QUEUE, keys.REJECTED, keys.REJECTED_MAIL],
            args=[self.queue_limit, _MOST_BYTES, SHORTEST, self._longest, keys.MAIL_PREFIX, *named],
        )
        moved, following, empty, *refused = answer
        place = int(str(following))
        counts = tuple(map(int, str(empty).split()))
        return Collected(int(str(moved)), place - 1 if place else None, counts, tuple(map(str, refused)))
