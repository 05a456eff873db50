"""Empties the mailboxes of the clusters into the results queue.

Agents may write nowhere but into the few slots of their own mailbox, so what one credential can make Redis hold is
bounded, and a cluster that sends much delays no other: the mailboxes are emptied in turns, and only while the queue is
short. An agent says on a channel in which slot it has put something; a slow look at all mailboxes finds what was not
heard. One results worker of all collects at a time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from itertools import islice
from typing import Any

import redis

import dsf.log
from dsf import keys
from dsf.settings import Settings
from dsf.store.looping import repeat
from dsf.store.mail import Mail
from dsf.throttle import Throttle

#: Seconds between two looks at all mailboxes.
SWEEP_EVERY = 5.0
#: Seconds after which another worker collects in place of one that died.
LEASE = 3.0
_RENEW_EVERY = 1.0
# Longest wait for a bell, in seconds: so late are the end of this worker and a due look noticed.
_LONGEST_WAIT = 0.5
# Seconds between two looks at a queue that is as long as it may be, and tasks that must have left it before more is
# collected: to name hundreds of clusters and move one result takes more from a worker than the result.
_NO_ROOM_PAUSE = 0.05
_ROOM = 2
#: Time from one collection to the next, in seconds: results that come soon after each other are taken in together, for
#: most of a result's cost is that of its collection and its task. One that comes alone does not wait. The longer time
#: holds until a task is full, while no mailbox fills.
PACE, QUIET_PACE = 0.03, 0.3
#: Slots of one mailbox with something in them from which on it counts as one that fills.
_FILLING = 3
# Bells that are heard before what they say is collected.
_MOST_BELLS = 1000
# Clusters that one script empties: Redis answers no other client meanwhile.
_BATCH = 500
_ALL = tuple(range(keys.MAIL_SLOTS))
_SLOTS = {str(slot): slot for slot in _ALL}

log = dsf.log.get(__name__)


class Collector:
    """Collects until it is stopped. Any number of workers may have one."""

    def __init__(self, client: redis.Redis, settings: Settings, stopping: threading.Event) -> None:
        self._redis = client
        self._mail = Mail(
            client, queue_limit=settings.results_queue_limit, message_limit=settings.max_result_message_bytes
        )
        self._stopping = stopping
        self._group = settings.results_group
        self._throttle = Throttle(10.0)
        # Cluster -> its slots with something in them, in the order in which they are emptied.
        self._ringing: dict[str, dict[int, None]] = {}
        # Results that there is room for while more wait than that; None while all of them have room.
        self._room: int | None = None
        self._ours_until = 0.0
        self._collected_at = 0.0

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
        """Collect while it is this worker's turn. Raises redis.RedisError."""
        self._ringing.clear()
        client: Any = self._redis
        with client.pubsub(ignore_subscribe_messages=True) as bells:
            bells.psubscribe(keys.mail_bell("*"))
            next_sweep = 0.0
            while not self._stopping.is_set() and self._is_ours():
                if time.monotonic() >= next_sweep:
                    next_sweep = time.monotonic() + SWEEP_EVERY
                    for cluster in self._mail.waiting():
                        self._ringing.setdefault(cluster, {}).update(dict.fromkeys(_ALL))
                is_quiet = self._hear(bells)
                if self._ringing:
                    # In a flood of bells those of the other clusters are behind it: no time to wait.
                    if is_quiet:
                        self._await_others(bells)
                    if not self.collect():
                        self._await_room()
                    if self._ringing:
                        # More is there than was collected: what waits already need not wait for others.
                        self._collected_at = float("-inf")

    def _is_ours(self) -> bool:
        now = time.monotonic()
        if now >= self._ours_until:
            if not self._mail.is_ours(LEASE):
                return False
            self._ours_until = now + _RENEW_EVERY
        return True

    def _await_others(self, bells: Any) -> None:
        """Keep the pace, and note who else rang meanwhile."""
        while (left := self._collected_at + self._pace() - time.monotonic()) > 0:
            self._stopping.wait(min(left, PACE))
            self._hear(bells)
        self._collected_at = time.monotonic()

    def _await_room(self) -> None:
        """Wait for the queue to get shorter, but for no longer than bells may ring unheard."""
        until = time.monotonic() + _LONGEST_WAIT
        enough = min(_ROOM * self._group, self._mail.queue_limit // 2)
        while not self._stopping.wait(_NO_ROOM_PAUSE):
            self._room = self._mail.room()
            if self._room >= enough or time.monotonic() >= until:
                return

    def _pace(self) -> float:
        waiting = [len(slots) for slots in self._ringing.values()]
        return PACE if max(waiting) >= _FILLING or sum(waiting) >= self._group else QUIET_PACE

    def _hear(self, bells: Any) -> bool:
        """Note what the bells say that have rung by now; wait for one if nothing is to be done.

        Says whether these were all.
        """
        wait = 0.0 if self._ringing else _LONGEST_WAIT
        for _ in range(_MOST_BELLS):
            try:
                message = bells.get_message(timeout=wait)
            except UnicodeDecodeError:
                # No slot. Whoever rings so must not stop the others from being heard.
                continue
            if message is None:
                return True
            self.ring(str(message["channel"]).removeprefix(keys.MAIL_PREFIX), str(message["data"]))
            wait = 0.0
        return False

    def ring(self, cluster: str, slot: str) -> None:
        """Something may be in this slot. What comes from a channel is not trusted."""
        number = _SLOTS.get(slot)
        if number is not None and keys.is_name(cluster):
            self._ringing.setdefault(cluster, {})[number] = None

    def collect(self) -> bool:
        """Move what is there into the queue; says whether there was room for all of it. Raises redis.RedisError."""
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
        # Whose turn was over is the last one next time, and so is a slot: the next result in it may come at once.
        rest, turn = divmod(done.next, len(order))
        for cluster in (*(order[turn:] if rest else ()), *order[:turn]):
            self._ringing[cluster] = self._ringing.pop(cluster)
        for cluster, number in zip(order, done.empty, strict=True):
            for slot in batch[cluster][:number]:
                del self._ringing[cluster][slot]
            if not self._ringing[cluster]:
                del self._ringing[cluster]
        return False
