"""Kombu's Redis transport for the results worker: what agents push is taken apart before Celery sees it.

Everybody who holds an agent's credential may push anything into the results queue. A Celery message can carry more
than a task: a chain or callbacks that the worker would send on with the hub's rights, a time at which to run that keeps
it in memory, a place to which it is put back; and one that is no message at all ends a worker. So each message is
rebuilt from the two things that are wanted of it, its envelope and its id; everything else is dropped.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
import uuid
from queue import Empty
from typing import Any

from kombu.transport import redis as base
from kombu.transport import virtual
from kombu.utils.json import dumps

import dsf.log
from dsf import keys
from dsf.errors import MessageRejectedError
from dsf.messages import INGEST_TASK
from dsf.redislink import transport as link
from dsf.results import lifetime
from dsf.settings import settings

# An envelope grows as it is packed: quotes are escaped twice, and base64 adds a third.
_PACKING = 3
_LONGEST_TEXT = 200

# What is overridden is not in the published types of kombu.
_BaseChannel: Any = link.Channel
_BaseSentinelChannel: Any = link.SentinelChannel
_BaseTransport: Any = link.Transport
_BaseSentinelTransport: Any = link.SentinelTransport
_BaseQoS: Any = base.QoS

log = dsf.log.get(__name__)


def rebuild(item: bytes, limit: int) -> dict[str, Any]:
    """The message with one envelope that `item`, pushed by anybody, comes to. `limit` is in bytes of an envelope.

    Raises MessageRejectedError (`malformed`) when it is not a call of the ingest task.
    """
    if len(item) > limit * _PACKING:
        raise MessageRejectedError("malformed", f"message of {len(item)} bytes, the limit is {limit * _PACKING}")
    try:
        raw = json.loads(item)
    except (ValueError, RecursionError) as error:
        raise MessageRejectedError("malformed", f"not JSON: {type(error).__name__}") from None
    if not isinstance(raw, dict):
        raise MessageRejectedError("malformed", "not a Celery message")
    headers, properties, body = raw.get("headers"), raw.get("properties"), raw.get("body")
    if not (isinstance(headers, dict) and isinstance(properties, dict) and isinstance(body, str)):
        raise MessageRejectedError("malformed", "not a Celery message")
    if headers.get("task") != INGEST_TASK:
        raise MessageRejectedError("malformed", f"not a call of {INGEST_TASK}")
    task_id = _text(headers.get("id")) or str(uuid.uuid4())
    delivery = properties.get("delivery_info")
    redelivered = isinstance(delivery, dict) and delivery.get("redelivered") is True
    return {
        "body": _envelope_only(body, properties.get("body_encoding")),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {
            "lang": "py",
            "task": INGEST_TASK,
            "id": task_id,
            "root_id": _text(headers.get("root_id")) or task_id,
            "parent_id": None,
            "argsrepr": _text(headers.get("argsrepr")),
            "kwargsrepr": "{}",
            "origin": _text(headers.get("origin")),
            "retries": 0,
        },
        "properties": {
            "correlation_id": task_id,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": keys.RESULTS_QUEUE, "redelivered": redelivered},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": str(uuid.uuid4()),
        },
    }


def _envelope_only(body: str, encoding: object) -> str:
    """The body with the first argument and nothing else; as it is when there is nothing else in it."""
    try:
        text = base64.b64decode(body, validate=True) if encoding == "base64" else body.encode()
        parts = json.loads(text)
    except (ValueError, binascii.Error, RecursionError) as error:
        raise MessageRejectedError("malformed", f"unreadable body: {type(error).__name__}") from None
    arguments = parts[0] if isinstance(parts, list) and parts else None
    if not (isinstance(arguments, list) and arguments):
        raise MessageRejectedError("malformed", "no envelope in the message")
    clean = encoding == "base64" and len(arguments) == 1 and len(parts) == 3 and _nothing_in(parts[1], parts[2])
    if clean:
        return body
    return base64.b64encode(json.dumps([arguments[:1], {}, {}]).encode()).decode()


def _nothing_in(kwargs: object, embed: object) -> bool:
    return kwargs == {} and isinstance(embed, dict) and not any(embed.values())


def _text(value: object) -> str:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""


class QoS(_BaseQoS):  # type: ignore[misc]
    """Remembers unfinished messages as the base class does, and lets go of where they were kept before."""

    def append(self, message: Any, delivery_tag: str) -> None:
        """Note that a message is being worked on: in one step, so that it is always somewhere."""
        delivery = message.delivery_info
        note = dumps([message._raw, delivery["exchange"], delivery["routing_key"]])
        with self.pipe_or_acquire() as pipe:
            pipe.zadd(self.unacked_index_key, {delivery_tag: time.time()})
            pipe.hset(self.unacked_key, delivery_tag, note)
            self.channel.let_go(pipe)
            pipe.execute()
        virtual.QoS.append(self, message, delivery_tag)


class Channel(_BaseChannel):  # type: ignore[misc]
    """A channel that loses no result and takes no garbage.

    The base class pops a message and only then notes that it has it; under load a worker that is killed nearly always
    loses one, for the next message is already popped while it works. Here Redis moves it into a list of this channel's
    own, and it leaves that list in the same step in which it is noted. The sweepers put back what is in the lists of
    workers that are gone.
    """

    QoS = QoS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Before the base class connects: that may fail.
        self.taken = ""
        self._moving = False
        super().__init__(*args, **kwargs)

    def _brpop_start(self, timeout: float | None = None) -> None:
        if list(self.active_queues) != [keys.RESULTS_QUEUE]:
            super()._brpop_start(timeout)
            return
        if not self.taken:
            # The list is made known before anything can be in it.
            taken = keys.taken_list(str(uuid.uuid4()))
            with self.conn_or_acquire() as client:
                client.zadd(keys.TAKERS, {taken: time.time()})
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
            except self.connection_errors:
                # The next look connects again.
                self.client.connection.disconnect()
                raise
            if item is None:
                raise Empty
            self._take(item)
            return True
        finally:
            self._moving = False
            self._in_poll = None
            self._flush_brpop_reauth()

    def _take(self, item: bytes) -> None:
        """Hand one element of the queue to Celery, or refuse it."""
        try:
            message = rebuild(item, settings().max_result_message_bytes)
        except MessageRejectedError as error:
            log.warning("result refused", reason=error.reason, why=str(error))
            with self.conn_or_acquire() as client, client.pipeline() as pipe:
                pipe.hincrby(keys.REJECTED, error.reason, 1)
                self.let_go(pipe)
                pipe.execute()
            return
        self.connection._deliver(message, keys.RESULTS_QUEUE)

    def let_go(self, pipe: Any) -> None:
        """Add to `pipe` that the newest message taken is noted elsewhere or done with."""
        if self.taken:
            # The newest: after a broken connection an older one may be left, which is put back later.
            pipe.lpop(self.taken)

    def close(self) -> None:
        """Close; whatever is left in the list is put back later."""
        super().close()
        lifetime.takers.discard(self.taken)


class Transport(_BaseTransport):  # type: ignore[misc]
    """Redis with that channel."""

    Channel = Channel


class SentinelChannel(Channel, _BaseSentinelChannel):  # type: ignore[misc]
    """That channel to the server that Sentinel names."""


class SentinelTransport(_BaseSentinelTransport):  # type: ignore[misc]
    """Redis behind Sentinel with that channel."""

    Channel = SentinelChannel
