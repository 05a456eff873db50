"""Takes results out of the clusters' mailboxes into the books, as calls of the task `dsf.ingest` in this process.

An agent may write only to the few slots of its own mailbox, so one credential uses bounded memory in Redis. A slot is
emptied once its result is in the books, and only if it still holds that result: a worker that dies in between loses
nothing, and ingesting a result twice changes nothing. Any number of workers take turns.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import Any, Final

import redis
from celery import Task

import dsf.log
from dsf.messages import MAX_RESULT_BYTES
from dsf.results.ingest import Ingest
from dsf.store.client import repeat
from dsf.store.mail import Mailboxes, Waiting, cluster_of

#: Seconds between two looks for results: they are gathered, as a task and its round trips cost more than a result.
PAUSE: Final = 0.2
# Names of clusters in Flower.
_NAMED: Final = 5

log = dsf.log.get(__name__)


class Batch:
    """Results for one call of `dsf.ingest`. They never pass through a queue, so the task takes this object itself."""

    def __init__(self, waiting: Waiting, ingest: Ingest) -> None:
        self._waiting = waiting
        self._ingest = ingest
        self._envelopes = [_envelope(text) for text in waiting.texts]
        #: Numbers of those that are finished: in the books, or refused for good.
        self.finished: list[int] = []

    def take_in(self) -> str:
        """Ingest all; returns how many there were of each outcome.

        Never fails because of what a result says. Raises redis.RedisError if Redis refuses some of them for now.
        """
        outcomes: Counter[str] = Counter()
        trouble: redis.ResponseError | None = None
        for number, answer in enumerate(self._ingest.handle_all(self._envelopes)):
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

    def __repr__(self) -> str:
        """What Flower shows as the task's argument."""
        clusters = list(dict.fromkeys(map(cluster_of, self._waiting.slots)))
        more = f" and {len(clusters) - _NAMED} more" if len(clusters) > _NAMED else ""
        count = len(self._envelopes)
        return f"{count} result{'' if count == 1 else 's'} of {', '.join(clusters[:_NAMED])}{more}"


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
        self._mail = Mailboxes(client, MAX_RESULT_BYTES)
        self._ingest = ingest
        self._task = task
        self._stopping = stopping
        self._everywhere_at = 0.0
        self._pause = PAUSE
        #: Whether more results waited than were read the last time: other work should wait.
        self.is_behind = False

    def run(self) -> None:
        """Take results in until stopped."""
        repeat(self.turn, self._stopping, doing="take results in", pause=1.0)

    def turn(self) -> float:
        """Take in some of what waits; returns the seconds until the next turn. Raises redis.RedisError."""
        everywhere = time.monotonic() >= self._everywhere_at
        waiting = self._mail.read(everywhere=everywhere)
        if everywhere and not waiting.is_more:
            # Every mailbox, now and then: the flag of a result may not have been set.
            self._everywhere_at = time.monotonic() + 10.0
        self.is_behind = waiting.is_more
        if waiting.slots:
            self._take_in(waiting)
        return 0.0 if waiting.is_more else PAUSE

    def _take_in(self, waiting: Waiting) -> None:
        batch = Batch(waiting, self._ingest)
        done = self._task.apply((batch,))
        self._mail.empty(
            [waiting.slots[number] for number in batch.finished], [waiting.texts[number] for number in batch.finished]
        )
        if not done.successful():
            # What is left has lost its flag.
            self._everywhere_at = 0.0
            raise done.result


def _envelope(text: bytes) -> object:
    """The envelope in this text; None, which none is, if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def is_hopeless(error: redis.ResponseError) -> bool:
    """Whether Redis will refuse this result for ever; any other error says something of Redis, and the result waits."""
    if type(error) is not redis.ResponseError:
        return False
    code = str(error).partition(" ")[0]
    # Redis writes the code of a condition of its own in capitals (MISCONF, BUSY, OOM, ...); the client cuts a mere ERR.
    return code == "WRONGTYPE" or not code.isupper()
