"""Reads results from the clusters' mailboxes, and ingests them by the task `dsf.ingest` in this process.

An agent may write only to the few slots of its own mailbox, which limits the memory that one credential can occupy. A
result stays in its slot until it is in the books, so that a worker that dies before loses nothing. A slot is emptied
only if it still contains the ingested result, because the agent may have replaced the result. Ingesting a result twice
has no effect. A worker claims the mailboxes that it reads for some seconds, so that other workers read other mailboxes.

The results of one cluster must not block the results of other clusters. Therefore each cluster has a share of the bytes
of a read. If a worker dies, the slots that it was reading are read one by one, and a slot whose reader dies again is
dropped.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import redis
from celery import Task

import dsf.log
from dsf import keys
from dsf.messages import FRAME_MARK, MAX_FRAME_BYTES
from dsf.results.ingest import Ingest
from dsf.store.client import load_lua, run_until_stopped
from dsf.store.heartbeats import Heartbeat

#: Seconds between two polls while results arrive. The pause makes batches larger, because a task with its round trips
#: costs more than a result.
POLL_SECONDS: Final = 0.2
# The pause of an idle worker, as a multiple of the duration of the last poll, so that polling takes 4 % of the time.
_IDLE_FACTOR: Final = 25
# Seconds between two reads of all mailboxes, including those whose agent failed to set the flag.
_FULL_READ_SECONDS: Final = 10.0
#: Minimum bytes of a result, which has a signature.
MIN_RESULT_BYTES: Final = 120
# Maximum results and bytes of a read, which one task ingests. Redis serves no other client during the read.
_MAX_RESULTS, _MAX_BYTES = 300, 8 * 1024 * 1024
# Maximum bytes of one cluster in a read. A larger result is read alone.
_CLUSTER_BYTES = 1024 * 1024
# Maximum bytes of results that are parsed together. Their objects take up to 40 times as much memory.
_PARSED_BYTES = 512 * 1024
# Milliseconds for which a worker claims a mailbox. Ingesting a read takes less.
_CLAIM_MILLISECONDS: Final = 10_000
# Maximum cluster names in the task's argument in Flower.
_SHOWN_CLUSTERS: Final = 5

log = dsf.log.get(__name__)


class MailboxContents(NamedTuple):
    """The result of a read: slots, their texts, and whether the mailboxes have more results."""

    slots: list[bytes]
    texts: list[bytes]
    has_more: bool
    #: Slots that were emptied without ingestion, because the worker that read each of them alone died.
    dropped: Sequence[bytes] = ()


class Mailboxes:
    """Reads and empties the mailboxes of all clusters, in one thread.

    Methods raise redis.RedisError if Redis is unreachable, and may then be repeated. The client must not decode
    responses, because agents may write any bytes.
    """

    def __init__(self, client: redis.Redis, max_bytes: int) -> None:
        """A result has at most `max_bytes`."""
        self._max_result_bytes = max_bytes
        self._read_script = client.register_script(load_lua("mail_read"))
        self._empty_script = client.register_script(load_lua("mail_empty"))
        self._token = secrets.token_hex(16)
        self._next_cluster_number = 0
        # True if the next read is of a single slot that may have killed a worker. This is every second read.
        self._reads_suspect = False

    def read(self, *, everywhere: bool = False) -> MailboxContents:
        """Read waiting results of all clusters, and leave them in their slots.

        With `everywhere`, mailboxes without a flag are also read, because an agent's connection may break before it
        sets the flag.
        """
        sizes = _MAX_RESULTS, _MAX_BYTES, MIN_RESULT_BYTES, self._max_result_bytes
        response: Any = self._read_script(
            keys=[
                *(keys.CLUSTERS, keys.MAIL_CLAIMS, keys.REJECTED, keys.REJECTED_MAIL),
                *(keys.MAIL_READING, keys.MAIL_SUSPECTS),
            ],
            args=[
                *(keys.MAIL_PREFIX, keys.MAIL_SLOTS, self._token, _CLAIM_MILLISECONDS),
                *sizes,
                *(self._next_cluster_number, int(everywhere), _CLUSTER_BYTES, int(self._reads_suspect)),
            ],
        )
        self._reads_suspect = not self._reads_suspect
        self._next_cluster_number, has_more, slots, texts, dropped = response
        return MailboxContents(slots, texts, bool(has_more), dropped)

    def empty(self, slots: Sequence[bytes], texts: Sequence[bytes]) -> None:
        """Empty the slots that still contain these texts, and release the claims on their mailboxes.

        A slot with an empty text keeps its result.
        """
        if slots:
            # Send only the first bytes, which contain the signature and thus identify a result.
            self._empty_script(
                keys=[keys.MAIL_CLAIMS, keys.MAIL_READING, keys.MAIL_SUSPECTS, *slots],
                args=[self._token, *(text[:FRAME_MARK] for text in texts), *set(map(find_cluster, slots))],
            )


def find_cluster(slot: bytes) -> str:
    """Return the cluster to whose mailbox this slot belongs."""
    return slot.decode().removeprefix(keys.MAIL_PREFIX).rpartition(".")[0]


class Batch:
    """The argument of one call of `dsf.ingest`, never serialised, because the task runs in this process."""

    def __init__(self, contents: MailboxContents, ingest: Ingest) -> None:
        self._contents = contents
        self._ingest = ingest
        #: Indexes of the results that are in the books, or refused permanently.
        self.finished_indexes: list[int] = []

    def ingest_mailboxes(self) -> str:
        """Ingest all results, and return a text with the number of results per outcome.

        The content of a result never raises an error. Raises redis.RedisError if Redis temporarily refuses a result.
        """
        outcomes: Counter[str] = Counter()
        temporary_error: redis.ResponseError | None = None
        for index, outcome in enumerate(self._ingest_parts()):
            if isinstance(outcome, redis.ResponseError) and not is_permanent(outcome):
                temporary_error = outcome
                continue
            if isinstance(outcome, redis.ResponseError):
                # A retry would block the results behind this one for ever.
                log.error("result dropped", error=str(outcome))
                self._ingest.count_rejection("malformed")
                outcomes["malformed"] += 1
            else:
                outcomes[outcome] += 1
            self.finished_indexes.append(index)
        if temporary_error is not None:
            raise temporary_error
        return ", ".join(f"{outcome} {count}" for outcome, count in sorted(outcomes.items()))

    def _ingest_parts(self) -> Iterator[str | redis.ResponseError]:
        """Ingest the results in parts of limited size, and yield their outcomes."""
        part: list[bytes] = []
        for text in self._contents.texts:
            if part and sum(map(len, part)) + len(text) > _PARSED_BYTES:
                yield from self._ingest.ingest_frames(part)
                part = []
            part.append(text)
        yield from self._ingest.ingest_frames(part)

    def __repr__(self) -> str:
        """Return the text that Flower shows as the task's argument."""
        clusters = list(dict.fromkeys(map(find_cluster, self._contents.slots)))
        suffix = f" and {len(clusters) - _SHOWN_CLUSTERS} more" if len(clusters) > _SHOWN_CLUSTERS else ""
        count = len(self._contents.slots)
        return f"{count} result{'' if count == 1 else 's'} of {', '.join(clusters[:_SHOWN_CLUSTERS])}{suffix}"


class Intake:
    """Reads and ingests results until stopped."""

    def __init__(
        self,
        client: redis.Redis,
        ingest: Ingest,
        task: Task[Any, Any],
        stopping: threading.Event,
    ) -> None:
        """`client` must not decode responses."""
        self._mail = Mailboxes(client, MAX_FRAME_BYTES)
        self._ingest = ingest
        self._task = task
        self._stopping = stopping
        self._full_read_at = 0.0
        self._heartbeat = Heartbeat(client, keys.RESULTS_STAGE)
        #: True if the last read left results in the mailboxes, so that other work should wait.
        self.is_behind = False

    def run(self) -> None:
        """Ingest results until stopped."""
        run_until_stopped(self.run_pass, self._stopping, task="ingest results", retry_seconds=1.0)

    def run_pass(self) -> float:
        """Read the mailboxes once, ingest the results, and return the seconds until the next pass.

        Raises redis.RedisError.
        """
        started_at = time.monotonic()
        is_full_read = started_at >= self._full_read_at
        contents = self._mail.read(everywhere=is_full_read)
        poll_seconds = time.monotonic() - started_at
        if is_full_read and not contents.has_more:
            self._full_read_at = started_at + _FULL_READ_SECONDS
        self.is_behind = contents.has_more
        for slot in contents.dropped:
            log.error(
                "result dropped unread: the results worker that read it alone died; revoke the cluster's credentials "
                "unless its agent is trusted",
                cluster=find_cluster(slot),
            )
        if contents.slots:
            self._ingest_batch(contents)
        self._heartbeat.renew()
        if contents.has_more:
            return 0.0
        return POLL_SECONDS if len(contents.slots) > 1 else min(POLL_SECONDS, _IDLE_FACTOR * poll_seconds)

    def _ingest_batch(self, contents: MailboxContents) -> None:
        batch = Batch(contents, self._ingest)
        task_result = self._task.apply((batch,))
        finished_indexes = set(batch.finished_indexes)
        self._mail.empty(
            contents.slots, [text if number in finished_indexes else b"" for number, text in enumerate(contents.texts)]
        )
        if not task_result.successful():
            # Make the next read a full one: this read has cleared the flags of mailboxes whose results remain.
            self._full_read_at = 0.0
            raise task_result.result


def is_permanent(error: redis.ResponseError) -> bool:
    """Return True if Redis will always reject this result; results with other errors are ingested later."""
    if type(error) is not redis.ResponseError:
        return False
    code = str(error).partition(" ")[0]
    # Redis prefixes server states with an upper-case code (MISCONF, BUSY, OOM, ...); redis-py strips the generic ERR.
    return code == "WRONGTYPE" or not code.isupper()
