"""The hub's side of the clusters' mailboxes: the results that wait there.

A result stays in its slot until it is in the books, so a results worker that dies loses none. The one that reads a
mailbox claims it for seconds; meanwhile others read other mailboxes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import redis

from dsf import keys
from dsf.messages import PACKING
from dsf.store.client import batched, lua

#: Bytes of the shortest result: it has an envelope with a signature.
SHORTEST: Final = 200
# Results and bytes read at once: together they are one task, and Redis serves nobody else while it reads them.
_MOST, _MOST_BYTES = 100, 32 * 1024 * 1024


class Waiting(NamedTuple):
    """Results that were read: slots, the texts in them, and whether there are more."""

    slots: list[bytes]
    texts: list[bytes]
    is_more: bool


class Mailboxes:
    """The mailboxes of all clusters. Methods raise redis.RedisError if Redis is unreachable; they may be repeated.

    For one thread. The client must not decode answers: agents may write any bytes.
    """

    def __init__(self, client: redis.Redis, message_limit: int) -> None:
        """A result has at most `message_limit` characters."""
        self._redis = client
        self._longest = message_limit * PACKING
        self._read = client.register_script(lua("mail_read"))
        self._empty = client.register_script(lua("mail_empty"))
        self._token = secrets.token_hex(16)
        self._first = 0

    def read(self, *, everywhere: bool = False) -> Waiting:
        """Results that wait, some of each cluster; they stay in their slots.

        `everywhere` also looks into mailboxes whose flag is missing: an agent's connection may break before it is set.
        """
        answer: Any = self._read(
            keys=[keys.CLUSTERS, keys.REJECTED, keys.REJECTED_MAIL],
            args=[
                keys.MAIL_PREFIX,
                keys.MAIL_SLOTS,
                keys.MAIL_CLAIM_PREFIX,
                self._token,
                # Milliseconds after which others may read the mailbox of a worker that died: longer than results take
                # to be ingested.
                10_000,
                _MOST,
                _MOST_BYTES,
                SHORTEST,
                self._longest,
                self._first,
                int(everywhere),
            ],
        )
        self._first, is_more, *results = answer
        return Waiting(results[::2], results[1::2], bool(is_more))

    def empty(self, slots: Sequence[bytes], texts: Sequence[bytes]) -> None:
        """Empty slots that still hold these texts, and let other workers read their mailboxes."""
        claims = {keys.mail_claim(cluster_of(slot)) for slot in slots}
        self._empty(
            keys=[*slots, *claims],
            # The last bytes tell a result from every other one: they hold its signature.
            args=[self._token, len(slots), *(text[-80:] for text in texts)],
        )


def cluster_of(slot: bytes) -> str:
    """The cluster to whose mailbox this slot belongs."""
    return slot.decode().removeprefix(keys.MAIL_PREFIX).rpartition(".")[0]


def results_waiting(client: redis.Redis, clusters: Iterable[str]) -> int:
    """The number of results in the mailboxes of these clusters. Raises redis.RedisError."""
    waiting = 0
    for batch in batched(clusters, 500):
        with client.pipeline(transaction=False) as pipe:
            for cluster in batch:
                pipe.exists(*keys.mail_slots(cluster))
            waiting += sum(pipe.execute())
    return waiting
