"""Takes results out of the clusters' mailboxes into the books, as calls of the task `dsf.ingest` in this process.

An agent may write only to the few slots of its own mailbox, so one credential uses bounded memory in Redis. A result
stays in its slot until it is in the books, and the slot is emptied only if it still holds that result: a worker that
dies in between loses nothing, and ingesting a result twice changes nothing. The worker that reads a mailbox claims it
for seconds; meanwhile others read other mailboxes.

Results of one cluster must not stop those of others. A cluster has a share of the bytes of each read. Slots that a
worker was reading when it died are read one by one, and the slot that it was reading alone is dropped.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import redis
from celery import Task, shared_task

import dsf.log
from dsf import keys
from dsf.messages import FRAME_MARK, INGEST_TASK, MAX_FRAME_BYTES
from dsf.results.ingest import Ingest
from dsf.store.client import lua, repeat
from dsf.store.heartbeats import Mark

#: Seconds between two polls while results stream in: results are gathered, as a task and its round trips cost more
#: than a result. When idle, the pause is 25 times the duration of the last poll, so that a first score waits little;
#: polling then takes 4 % of the time, part of it waiting for Redis.
PAUSE: Final = 0.2
_IDLE_FACTOR: Final = 25
# Seconds between two reads of every mailbox: the flag of a result may not have been set.
_EVERYWHERE_EVERY: Final = 10.0
#: Bytes of the shortest result: it has a signature.
SHORTEST: Final = 120
# Results and bytes read at once: together they are one task, and Redis serves no other client while it reads them.
_MOST, _MOST_BYTES = 300, 8 * 1024 * 1024
# Bytes read at once of one cluster, beyond the first of its results.
_SHARE = 1024 * 1024
# Bytes of results parsed at once: the objects take up to 40 times as much.
_PARSED_BYTES = 512 * 1024
# Milliseconds after which others may read the mailbox of a worker that died: longer than results take to be ingested.
_CLAIM_HOLDS: Final = 10_000
# Names of clusters in Flower.
_NAMED: Final = 5

log = dsf.log.get(__name__)


class MailboxContents(NamedTuple):
    """Results that were read: slots, the texts in them, and whether there are more."""

    slots: list[bytes]
    texts: list[bytes]
    is_more: bool
    #: Slots that were emptied unread, because the worker that read each of them alone died.
    dropped: Sequence[bytes] = ()


class Mailboxes:
    """The mailboxes of all clusters. Methods raise redis.RedisError if Redis is unreachable; they may be repeated.

    For one thread. The client must not decode answers: agents may write any bytes.
    """

    def __init__(self, client: redis.Redis, max_bytes: int) -> None:
        """A result has at most `max_bytes`."""
        self._longest = max_bytes
        self._read = client.register_script(lua("mail_read"))
        self._empty = client.register_script(lua("mail_empty"))
        self._token = secrets.token_hex(16)
        self._first = 0
        # Every second read is for a slot that a worker may have died of: it must not be the first one of a new worker.
        self._alone = False

    def read(self, *, everywhere: bool = False) -> MailboxContents:
        """Results that wait, some of each cluster; they stay in their slots.

        `everywhere` also reads mailboxes whose flag is missing: an agent's connection may break before it is set.
        """
        sizes = _MOST, _MOST_BYTES, SHORTEST, self._longest
        reply: Any = self._read(
            keys=[
                *(keys.CLUSTERS, keys.MAIL_CLAIMS, keys.REJECTED, keys.REJECTED_MAIL),
                *(keys.MAIL_READING, keys.MAIL_SUSPECTS),
            ],
            args=[
                *(keys.MAIL_PREFIX, keys.MAIL_SLOTS, self._token, _CLAIM_HOLDS),
                *sizes,
                *(self._first, int(everywhere), _SHARE, int(self._alone)),
            ],
        )
        self._alone = not self._alone
        self._first, is_more, slots, texts, dropped = reply
        return MailboxContents(slots, texts, bool(is_more), dropped)

    def empty(self, slots: Sequence[bytes], texts: Sequence[bytes]) -> None:
        """End a read: empty slots that still hold these texts, and let other workers read their mailboxes.

        Slots with an empty text keep their results.
        """
        if slots:
            # The first bytes identify a result: they contain its signature.
            self._empty(
                keys=[keys.MAIL_CLAIMS, keys.MAIL_READING, keys.MAIL_SUSPECTS, *slots],
                args=[self._token, *(text[:FRAME_MARK] for text in texts), *set(map(cluster_of, slots))],
            )


def cluster_of(slot: bytes) -> str:
    """The cluster to whose mailbox this slot belongs."""
    return slot.decode().removeprefix(keys.MAIL_PREFIX).rpartition(".")[0]


class Batch:
    """Results for one call of `dsf.ingest`. A batch never passes through a queue, so the task takes this object
    itself."""

    def __init__(self, waiting: MailboxContents, ingest: Ingest) -> None:
        self._waiting = waiting
        self._ingest = ingest
        #: Numbers of those that are finished: in the books, or refused for good.
        self.finished: list[int] = []

    def ingest_mailboxes(self) -> str:
        """Ingest all; returns how many there were of each outcome.

        Never fails because of the content of a result. Raises redis.RedisError if Redis refuses some of them for now.
        """
        outcomes: Counter[str] = Counter()
        trouble: redis.ResponseError | None = None
        for number, answer in enumerate(self._answers()):
            if isinstance(answer, redis.ResponseError) and not is_hopeless(answer):
                trouble = answer
                continue
            if isinstance(answer, redis.ResponseError):
                # Trying again would keep the results behind it waiting for ever.
                log.error("result dropped", error=str(answer))
                self._ingest.refuse("malformed")
                outcomes["malformed"] += 1
            else:
                outcomes[answer] += 1
            self.finished.append(number)
        if trouble is not None:
            raise trouble
        return ", ".join(f"{outcome} {count}" for outcome, count in sorted(outcomes.items()))

    def _answers(self) -> Iterator[str | redis.ResponseError]:
        """Ingest a few large results at a time, and small ones together."""
        part: list[bytes] = []
        for text in self._waiting.texts:
            if part and sum(map(len, part)) + len(text) > _PARSED_BYTES:
                yield from self._ingest.handle_all(part)
                part = []
            part.append(text)
        yield from self._ingest.handle_all(part)

    def __repr__(self) -> str:
        """Return the text that Flower shows as the task's argument."""
        clusters = list(dict.fromkeys(map(cluster_of, self._waiting.slots)))
        suffix = f" and {len(clusters) - _NAMED} more" if len(clusters) > _NAMED else ""
        count = len(self._waiting.slots)
        return f"{count} result{'' if count == 1 else 's'} of {', '.join(clusters[:_NAMED])}{suffix}"


@shared_task(name=INGEST_TASK, ignore_result=True, throws=(redis.RedisError, TypeError))
def ingest(batch: Batch) -> str:
    """Take in results from the clusters' mailboxes; returns how many there were of each outcome.

    Raises redis.RedisError if Redis refuses them for now, and TypeError for the call of a message: a result counts only
    if it was in its cluster's mailbox.
    """
    if not isinstance(batch, Batch):
        raise TypeError("results are read from the clusters' mailboxes; no message can bring one")
    return batch.ingest_mailboxes()


class Intake:
    """Takes results in until stopped."""

    def __init__(
        self,
        client: redis.Redis,
        ingest: Ingest,
        task: Task[Any, Any],
        stopping: threading.Event,
    ) -> None:
        """`client` does not decode answers."""
        self._mail = Mailboxes(client, MAX_FRAME_BYTES)
        self._ingest = ingest
        self._task = task
        self._stopping = stopping
        self._everywhere_at = 0.0
        self._mark = Mark(client, keys.RESULTS_STAGE)
        #: Whether more results waited than were read the last time: other work should wait.
        self.is_behind = False

    def run(self) -> None:
        """Take results in until stopped."""
        repeat(self.turn, self._stopping, doing="take results in", pause=1.0)

    def turn(self) -> float:
        """Take in some of what waits; returns the seconds until the next turn. Raises redis.RedisError."""
        began = time.monotonic()
        everywhere = began >= self._everywhere_at
        waiting = self._mail.read(everywhere=everywhere)
        poll_seconds = time.monotonic() - began
        if everywhere and not waiting.is_more:
            self._everywhere_at = began + _EVERYWHERE_EVERY
        self.is_behind = waiting.is_more
        for slot in waiting.dropped:
            log.error(
                "result dropped unread: the results worker that read it alone died; revoke the cluster's credentials "
                "unless its agent is trusted",
                cluster=cluster_of(slot),
            )
        if waiting.slots:
            self._ingest_batch(waiting)
        self._mark.set()
        if waiting.is_more:
            return 0.0
        return PAUSE if len(waiting.slots) > 1 else min(PAUSE, _IDLE_FACTOR * poll_seconds)

    def _ingest_batch(self, waiting: MailboxContents) -> None:
        batch = Batch(waiting, self._ingest)
        task_result = self._task.apply((batch,))
        finished = set(batch.finished)
        self._mail.empty(
            waiting.slots, [text if number in finished else b"" for number, text in enumerate(waiting.texts)]
        )
        if not task_result.successful():
            # The remaining results have lost their flag.
            self._everywhere_at = 0.0
            raise task_result.result


def is_hopeless(error: redis.ResponseError) -> bool:
    """Return True if Redis will always reject this result; any other error is temporary, and the result waits."""
    if type(error) is not redis.ResponseError:
        return False
    code = str(error).partition(" ")[0]
    # Redis prefixes server states with an upper-case code (MISCONF, BUSY, OOM, ...); redis-py strips the generic ERR.
    return code == "WRONGTYPE" or not code.isupper()
