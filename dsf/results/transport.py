"""Kombu's Redis transport for the results worker: no result lost, invalid messages refused, waiting ones batched."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from queue import Empty
from typing import Any

import redis
from kombu.transport import redis as base
from kombu.transport import virtual

import dsf.log
from dsf import keys, wire
from dsf.errors import MessageRejectedError
from dsf.messages import PACKING
from dsf.redislink import transport as link
from dsf.results import inbox, lifetime
from dsf.settings import settings
from dsf.store.client import lua
from dsf.throttle import Throttle

# A result received within this many seconds had waited, or came with a collection (their distance in a steady stream of
# results); there may be more.
_AT_ONCE = 0.45
# Seconds between polls while Redis refuses to block.
_FULL_PAUSE = 0.5
# Bytes of a record, well below Redis' limit of one value (`proto-max-bulk-len`, 16 MB): an unrecordable message would
# be put back for ever.
_LONGEST_NOTE = 14 * 1024 * 1024
# Bytes of elements per record: escaped quotes can double their size in it.
_MOST_TOGETHER = 6 * 1024 * 1024

# The overridden members are missing in kombu's type stubs.
_BaseChannel: Any = link.Channel
_BaseSentinelChannel: Any = link.SentinelChannel
_BaseTransport: Any = link.Transport
_BaseSentinelTransport: Any = link.SentinelTransport
_BaseQoS: Any = base.QoS

log = dsf.log.get(__name__)

# Bounds log lines in a flood of invalid messages.
_throttle = Throttle()


def _note(kept: dict[str, Any], exchange: str, routing_key: str) -> bytes:
    """The record from which kombu restores a message; in UTF-8, as escapes triple a character's size."""
    text = wire.packed([kept, exchange, routing_key])
    # Only a lone surrogate, which UTF-8 cannot encode, becomes a JSON escape.
    return text.encode("utf-8", "backslashreplace")


def _open(item: bytes) -> inbox.Letter:
    """Read an element of the queue. Raises MessageRejectedError, also if it could not be recorded."""
    letter = inbox.Letter.open(item, settings().max_result_message_bytes)
    if len(item) > _MOST_TOGETHER:
        length = len(_note({inbox.ITEMS: [letter.again()]}, "", keys.RESULTS_QUEUE))
        if length > _LONGEST_NOTE:
            raise wire.malformed(f"message that needs {length} bytes to be noted, the limit is {_LONGEST_NOTE}")
    return letter


class QoS(_BaseQoS):  # type: ignore[misc]
    """Records unacknowledged messages like the base class, and removes them from the channel's list."""

    def append(self, message: Any, delivery_tag: str) -> None:
        """Record a message as unacknowledged: atomically, so that it is always stored somewhere."""
        delivery = message.delivery_info
        raw = message._raw
        # Only the items if the message can be rebuilt from them.
        kept = {inbox.ITEMS: raw[inbox.ITEMS]} if inbox.ITEMS in raw else raw
        self.channel.let_go(delivery_tag, _note(kept, delivery["exchange"], delivery["routing_key"]))
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """The message is finished. In a script: a full Redis refuses every transaction."""
        self.channel.forget(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def restore_visible(self, *args: Any, **options: Any) -> None:
        """Restore unacknowledged messages; postponed while Redis is full, so that no worker's connect fails."""
        with contextlib.suppress(redis.exceptions.OutOfMemoryError):
            super().restore_visible(*args, **options)


class Channel(_BaseChannel):  # type: ignore[misc]
    """A channel that loses no result and refuses invalid messages.

    The base class pops a message before recording it; under load a killed worker nearly always loses one, because the
    next message is popped while it works. Here Redis moves it into this channel's own list, and it leaves that list
    atomically with being recorded. The sweepers restore the lists of dead workers.
    """

    QoS = QoS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Before the base class connects, which may fail.
        self.taken = ""
        self._moving = False
        # Elements in that list not recorded elsewhere: their number, and reasons of refused ones.
        self._held = 0
        self._refused: Counter[str] = Counter()
        self._scripts: dict[str, Any] = {}
        super().__init__(*args, **kwargs)

    def _brpop_start(self, timeout: float | None = None) -> None:
        if list(self.active_queues) != [keys.RESULTS_QUEUE]:
            super()._brpop_start(timeout)
            return
        if not self.taken:
            # The list is registered before anything can be in it, also if Redis is full.
            taken = keys.taken_list(str(uuid.uuid4()))
            self._run("taker", keys=[keys.TAKERS], args=[taken, time.time()])
            lifetime.takers.add(taken)
            self.taken = taken
        wait = self.brpop_timeout if timeout is None else timeout
        self._in_poll = self.client.connection
        self._brpop_sent_at = time.monotonic()
        self._moving = True
        self.client.connection.send_command("BLMOVE", keys.RESULTS_QUEUE, self.taken, "RIGHT", "LEFT", wait or 0)

    def _brpop_read(self, **options: Any) -> Any:
        if not self._moving:
            return super()._brpop_read(**options)
        try:
            try:
                item = self.client.parse_response(self.client.connection, "BLMOVE", **options)
            except redis.exceptions.OutOfMemoryError:
                items = self._when_full()
            except self.connection_errors:
                # The next poll reconnects.
                self.client.connection.disconnect()
                raise
            else:
                if item is None:
                    raise Empty
                items = self._all(item)
            self._take(items)
            return True
        finally:
            self._moving = False
            self._in_poll = None
            self._flush_brpop_reauth()

    def _all(self, item: bytes) -> list[bytes]:
        """The next batch, oldest first: this element, and more if waiting."""
        most = settings().results_group
        if most == 1 or time.monotonic() - self._brpop_sent_at > _AT_ONCE:
            return [item]
        try:
            return self._more(most)
        except redis.ResponseError:
            # A lasting error shows at the next request. This element is safe.
            return [item]

    def _when_full(self) -> list[bytes]:
        """Redis is full and allows only the hub's scripts: finished work makes room."""
        if (not_logged := _throttle.take("full")) is not None:
            log.warning("redis is full (maxmemory): results are taken in all the same", not_logged=not_logged)
        items = self._more(settings().results_group)
        if not items:
            # It refuses at once instead of blocking.
            time.sleep(_FULL_PAUSE)
            raise Empty
        return items

    def _more(self, most: int) -> list[bytes]:
        """Elements of this channel's list and, up to `most` in total, of the queue; oldest first."""
        size = min(settings().max_result_message_bytes * PACKING, _MOST_TOGETHER)
        found: list[bytes] = self._run("take", keys=[keys.RESULTS_QUEUE, self.taken], args=[most, size])
        return found[::-1]

    def _run(self, script: str, **values: Any) -> Any:
        with self.conn_or_acquire() as client:
            if script not in self._scripts:
                self._scripts[script] = client.register_script(lua(script))
            return self._scripts[script](**values, client=client)

    def _take(self, items: Sequence[bytes]) -> None:
        """Hand queue elements to Celery as one message; refuse invalid ones."""
        letters = []
        for item in items:
            try:
                letters.append(_open(item))
            except MessageRejectedError as error:
                self._refused[error.reason] += 1
                if (not_logged := _throttle.take(error.reason)) is not None:
                    log.warning("result refused", reason=error.reason, why=str(error), not_logged=not_logged)
        self._held = len(items)
        if letters:
            self.connection._deliver(inbox.message_of(letters), keys.RESULTS_QUEUE)
            return
        self.let_go()

    def let_go(self, tag: str = "", note: bytes = b"") -> None:
        """The last batch is finished, or recorded as unacknowledged under this tag."""
        refused = [part for item in self._refused.items() for part in item]
        self._run(
            "note",
            keys=[self.unacked_key, self.unacked_index_key, self.taken, keys.REJECTED],
            args=[tag, note, time.time(), self._held, *refused],
        )
        self._held = 0
        self._refused.clear()

    def forget(self, tag: str) -> None:
        """The message of this tag is finished."""
        self._run("done", keys=[self.unacked_key, self.unacked_index_key], args=[tag])

    def _do_restore_message(
        self, payload: dict[str, Any], exchange: str, routing_key: str, pipe: Any, leftmost: bool = False
    ) -> None:
        """Put back the elements of a message one by one."""
        items = payload.get(inbox.ITEMS)
        if items is None:
            super()._do_restore_message(payload, exchange, routing_key, pipe, leftmost)
            return
        # The queue is popped from the right: either way the oldest comes first again.
        for item in items if leftmost else reversed(items):
            (pipe.lpush if leftmost else pipe.rpush)(routing_key, item.encode("utf-8", "surrogatepass"))

    def close(self) -> None:
        """Close; elements left in the list are put back later."""
        super().close()
        lifetime.takers.discard(self.taken)


class Transport(_BaseTransport):  # type: ignore[misc]
    """Redis with that channel."""

    Channel = Channel


class SentinelChannel(Channel, _BaseSentinelChannel):  # type: ignore[misc]
    """That channel to the server named by Sentinel."""


class SentinelTransport(_BaseSentinelTransport):  # type: ignore[misc]
    """Redis behind Sentinel with that channel."""

    Channel = SentinelChannel
