"""Moves results from the clusters' mailboxes into the results queue.

Agents may write only to the few slots of their own mailbox, so one credential can use bounded memory in Redis, and a
busy cluster delays no other: the mailboxes are emptied round-robin, and only while the queue is short. An agent
publishes the number of each slot it writes (a bell); a slow sweep of all mailboxes finds missed ones. A bell may be
anything, up to megabytes, and as many as somebody likes: when one is none or they do not end, the collector stops
listening for a while, and sweeps often instead. Only one results worker collects at a time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from itertools import islice
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import dsf.log
from dsf import keys
from dsf.pacer import Pacer
from dsf.settings import Settings
from dsf.store.looping import repeat
from dsf.store.mail import Mail
from dsf.throttle import Throttle

#: Seconds between sweeps of all mailboxes.
SWEEP_EVERY = 5.0
#: Seconds after which another worker replaces a dead collector.
LEASE = 3.0
_RENEW_EVERY = 1.0
# Longest wait for a bell, in seconds: so late are shutdown and a due sweep noticed.
_LONGEST_WAIT = 0.5
# Seconds between checks of a full queue, and tasks that must have left it before collection resumes: naming hundreds of
# clusters to move one result costs a worker more than the result.
_NO_ROOM_PAUSE = 0.02
_ROOM = 2
#: Time from one collection to the next, in seconds: results in quick succession are batched, because collection and
#: task are most of a result's cost. The longer time applies until a task is two thirds full, while no mailbox
#: fills, and not to so many collections after a pause. A full task would be as much as the queue takes at once.
PACE, QUIET_PACE, BURST = 0.03, 0.3, 10
#: Used slots from which a mailbox counts as filling.
_FILLING = 3
# Bells read before the next collection, and so often in a row before the collector stops listening.
_MOST_BELLS, _MOST_READS = 1000, 3
#: Seconds without listening after too many bells, or one that is none.
DEAF = 60.0
_NO_RETRY = Retry(NoBackoff(), 0)
# Clusters per script call: it blocks Redis for other clients.
_BATCH = 500
_ALL = tuple(range(keys.MAIL_SLOTS))
_SLOTS = {str(slot): slot for slot in _ALL}

log = dsf.log.get(__name__)


class Collector:
    """Collects until stopped. Any number of workers may have one."""

    def __init__(self, client: redis.Redis, settings: Settings, stopping: threading.Event) -> None:
        self._redis = client
        self._mail = Mail(
            client, queue_limit=settings.results_queue_limit, message_limit=settings.max_result_message_bytes
        )
        self._stopping = stopping
        # Results from which a collection is worth a task.
        self._enough = max(1, min(settings.results_group, settings.results_queue_limit) * 2 // 3)
        # Room for which a full queue is waited for.
        self._least_room = min(_ROOM * settings.results_group, max(1, settings.results_queue_limit // 2))
        self._throttle = Throttle(10.0)
        # Until when (time.monotonic()) it does not listen, and reads in a row that left bells.
        self._deaf_until = 0.0
        self._unfinished = 0
        # Cluster -> its used slots, in collection order.
        self._ringing: dict[str, dict[int, None]] = {}
        # Room in results if more than that wait; None if all fit.
        self._room: int | None = None
        self._ours_until = 0.0
        self._collected_at = 0.0
        self._pace = Pacer(QUIET_PACE, BURST)

    def run(self) -> None:
        """Collect until stopped."""
        repeat(self._turn, self._stopping, doing="collect results", pause=_RENEW_EVERY)
        with contextlib.suppress(redis.RedisError):
            self._mail.give_up()

    def _turn(self) -> float:
        if not self._is_ours():
            return _RENEW_EVERY
        self._serve()
        return 0.0

    def _serve(self) -> None:
        """Collect while this worker has the lease. Raises redis.RedisError."""
        self._ringing.clear()
        client: Any = self._redis
        is_deaf = self._is_deaf
        with client.pubsub(ignore_subscribe_messages=True) as bells:
            if not is_deaf:
                bells.psubscribe(keys.mail_bell("*"))
                # It would connect again and again in silence: Redis cuts who does not read large bells fast enough.
                bells.connection.retry = _NO_RETRY
            next_sweep, is_behind = 0.0, False
            # To begin or end listening it leaves: what is on its way in this connection goes unread.
            while not self._stopping.is_set() and self._is_ours() and self._is_deaf == is_deaf:
                if time.monotonic() >= next_sweep:
                    next_sweep = time.monotonic() + (_LONGEST_WAIT if is_deaf else SWEEP_EVERY)
                    for cluster in self._mail.waiting():
                        self._ringing.setdefault(cluster, {}).update(dict.fromkeys(_ALL))
                is_quiet = self._hear(bells)
                if self._ringing:
                    # In a flood other clusters' bells are queued behind it: do not wait.
                    if is_quiet and not is_behind:
                        self._await_others(bells)
                    if not self.collect():
                        self._await_room()
                    # More is waiting than was collected: no need to wait for others.
                    is_behind = bool(self._ringing)

    @property
    def _is_deaf(self) -> bool:
        return time.monotonic() < self._deaf_until

    def _stop_listening(self, why: str) -> None:
        log.warning("not listening to bells for a while, mailboxes are swept instead", seconds=DEAF, why=why)
        self._deaf_until = time.monotonic() + DEAF

    def _is_ours(self) -> bool:
        now = time.monotonic()
        if now >= self._ours_until:
            if not self._mail.is_ours(LEASE):
                return False
            self._ours_until = now + _RENEW_EVERY
        return True

    def _await_others(self, bells: Any) -> None:
        """Keep the pace, and note bells meanwhile."""
        while (left := self._left()) > 0:
            self._stopping.wait(min(left, PACE))
            self._hear(bells)
        self._collected_at = time.monotonic()
        self._pace.step()

    def _await_room(self) -> None:
        """Wait for a shorter queue, but no longer than bells may be ignored."""
        until = time.monotonic() + _LONGEST_WAIT
        while not self._stopping.wait(_NO_ROOM_PAUSE):
            self._room = self._mail.room()
            if self._room >= self._least_room or time.monotonic() >= until:
                return

    def _left(self) -> float:
        """Seconds until the next collection."""
        soonest = self._collected_at + PACE - time.monotonic()
        waiting = [len(slots) for slots in self._ringing.values()]
        if max(waiting) >= _FILLING or sum(waiting) >= self._enough:
            return soonest
        return max(soonest, self._pace.left())

    def _hear(self, bells: Any) -> bool:
        """Read pending bells; wait for one if there is nothing to do (also while deaf: none comes then).

        Returns whether these were all.
        """
        wait = 0.0 if self._ringing else _LONGEST_WAIT
        for _ in range(_MOST_BELLS):
            try:
                message = bells.get_message(timeout=wait)
            except UnicodeDecodeError:
                self._stop_listening("one was no text")
                return False
            except redis.ConnectionError as error:
                self._stop_listening(str(error))
                return False
            if message is None:
                self._unfinished = 0
                return True
            cluster, slot = str(message["channel"]).removeprefix(keys.MAIL_PREFIX), str(message["data"])
            if not self.ring(cluster, slot):
                self._stop_listening(f"one of cluster {cluster[:253]} with {len(slot)} characters was no slot")
                return False
            wait = 0.0
        self._unfinished += 1
        if self._unfinished >= _MOST_READS:
            self._unfinished = 0
            self._stop_listening("there were too many")
        return False

    def ring(self, cluster: str, slot: str) -> bool:
        """This slot may be in use; returns False if it is none. Input from a channel is not trusted."""
        number = _SLOTS.get(slot)
        if number is None or not keys.is_name(cluster):
            return False
        self._ringing.setdefault(cluster, {})[number] = None
        return True

    def collect(self) -> bool:
        """Move waiting results into the queue; returns whether all fitted. Raises redis.RedisError."""
        most = _BATCH if self._room is None else max(1, min(_BATCH, self._room))
        batch = {cluster: tuple(self._ringing[cluster]) for cluster in islice(self._ringing, most)}
        done = self._mail.collect(batch)
        for cluster in done.refused:
            if (not_logged := self._throttle.take(cluster)) is not None:
                log.warning("something in a mailbox is no result", cluster=cluster, not_logged=not_logged)
        order = list(batch)
        if done.next is None:
            for cluster in order:
                del self._ringing[cluster]
            if self._room is not None:
                self._room = self._room - done.moved if self._ringing else None
            return self._room is None or self._room > 0
        # Served clusters come last next time, and so do slots: a slot's next result may come at once.
        rest, turn = divmod(done.next, len(order))
        for cluster in (*(order[turn:] if rest else ()), *order[:turn]):
            self._ringing[cluster] = self._ringing.pop(cluster)
        for cluster, number in zip(order, done.empty, strict=True):
            for slot in batch[cluster][:number]:
                del self._ringing[cluster][slot]
            if not self._ringing[cluster]:
                del self._ringing[cluster]
        return False
