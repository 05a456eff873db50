"""Celery messages (task protocol 2), made and taken apart without Celery.

A tick and a result are calls of one task with a few arguments. `apply_async` would make such a message with five times
the CPU and half as many bytes again.

What was pushed into a queue is not trusted. A Celery message can carry more than a task: a chain or callbacks that a
worker would send on with its own rights, a time at which to run that keeps it in memory, a place to which it is put
back; and one that is no message at all ends a worker. So of what comes only the parts of `Call` are taken, each of them
checked, and the message that Celery sees is made anew.
"""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from dsf.errors import MessageRejectedError

_ORIGIN: Final = f"gen{os.getpid()}@{socket.gethostname()}"
#: Characters of what only people read.
_LONGEST_TEXT: Final = 200
_ID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.:@-]{0,99}")
_MOST_RETRIES: Final = 1000


def message(
    task: str,
    args: Sequence[Any],
    queue: str,
    *,
    argsrepr: str,
    task_id: str | None = None,
    root_id: str | None = None,
    parent_id: str | None = None,
    expires: str | None = None,
    origin: str = _ORIGIN,
    redelivered: bool = False,
    delivery_tag: str | None = None,
    is_ascii: bool = True,
) -> dict[str, Any]:
    """A call of `task` as kombu's Redis transport takes it out of `queue`.

    `argsrepr` is what Flower and logs show, `expires` is ISO 8601.
    """
    task_id = task_id or str(uuid.uuid4())
    return {
        # No callbacks and no chain: what follows a task is decided where it runs.
        "body": _dumps([args, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}], is_ascii),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": task,
            "id": task_id,
            "expires": expires,
            "retries": 0,
            "root_id": root_id or task_id,
            "parent_id": parent_id,
            "argsrepr": argsrepr,
            "kwargsrepr": "{}",
            "origin": origin,
            "ignore_result": True,
        },
        "properties": {
            "correlation_id": task_id,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue} | ({"redelivered": True} if redelivered else {}),
            "priority": 0,
            # Plain text: base64, the default, only protects bytes that JSON does not have.
            "body_encoding": None,
            # Of this process' own making: what has the same one takes the place of another message.
            "delivery_tag": delivery_tag or str(uuid.uuid4()),
        },
    }


def call(task: str, args: Sequence[Any], queue: str, **options: Any) -> bytes:
    """The same for LPUSH onto `queue`, in UTF-8; `options` are those of `message`."""
    for is_ascii in (False, True):
        try:
            # Escapes would make a letter that ASCII does not have, twice packed, more than twice as long as UTF-8.
            return _dumps(message(task, args, queue, **options, is_ascii=is_ascii), is_ascii).encode()
        except UnicodeEncodeError:
            # Half of a character (a lone surrogate), which UTF-8 does not have, travels as an escape.
            if is_ascii:
                raise
    raise AssertionError("ASCII was encoded")


def _dumps(document: object, is_ascii: bool) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=is_ascii)


class Call(NamedTuple):
    """What is taken from an element of a queue: the call of one task."""

    task: str
    #: JSON text of [args, kwargs, ...], which may be anything, and whether it came as base64.
    body: str
    is_base64: bool
    id: str
    root_id: str
    parent_id: str | None
    #: Unix seconds.
    expires: float | None
    retries: int
    argsrepr: str
    origin: str
    redelivered: bool

    @classmethod
    def open(cls, item: bytes, limit: int) -> Call:
        """Read `item`, from an untrusted sender, of `limit` bytes at most.

        Raises MessageRejectedError (`malformed`) when it is no call of a task.
        """
        if len(item) > limit:
            raise malformed(f"message of {len(item)} bytes, the limit is {limit}")
        raw = _loads(item, "not JSON")
        if not isinstance(raw, dict):
            raise malformed("not a Celery message")
        headers, properties, body = raw.get("headers"), raw.get("properties"), raw.get("body")
        if not (isinstance(headers, dict) and isinstance(properties, dict) and isinstance(body, str)):
            raise malformed("not a Celery message")
        task = headers.get("task")
        if not isinstance(task, str):
            raise malformed("not a call of a task")
        delivery = properties.get("delivery_info")
        task_id = _id(headers.get("id")) or str(uuid.uuid4())
        return cls(
            task=task,
            body=body,
            is_base64=properties.get("body_encoding") == "base64",
            id=task_id,
            root_id=_id(headers.get("root_id")) or task_id,
            parent_id=_id(headers.get("parent_id")),
            expires=_moment(headers.get("expires")),
            retries=_count(headers.get("retries")),
            argsrepr=_text(headers.get("argsrepr")),
            origin=_text(headers.get("origin")),
            redelivered=isinstance(delivery, dict) and delivery.get("redelivered") is True,
        )

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Positional and named arguments. Raises MessageRejectedError (`malformed`)."""
        try:
            text = base64.b64decode(self.body, validate=True) if self.is_base64 else self.body.encode()
        except ValueError as error:
            raise malformed(f"unreadable body: {type(error).__name__}") from None
        match _loads(text, "unreadable body"):
            case [list(args), dict(kwargs), *_]:
                return args, kwargs
        raise malformed("no arguments in the message")


def malformed(why: str) -> MessageRejectedError:
    """The error about a message that cannot be read."""
    return MessageRejectedError("malformed", why)


def packed(texts: object) -> str:
    """JSON of texts, as short as it can be; half of a character stays what it is."""
    try:
        return to_json(texts).decode()
    except ValueError:
        return _dumps(texts, is_ascii=False)


def _loads(text: bytes, what: str) -> Any:
    try:
        # In half of the time; the other one decides about what this one does not take.
        return from_json(text)
    except ValueError:
        pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise malformed(f"{what}: {type(error).__name__}") from None


def _id(value: object) -> str | None:
    return value if isinstance(value, str) and _ID.fullmatch(value) else None


def _text(value: object) -> str:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""


def _moment(value: object) -> float | None:
    """ISO 8601, of UTC unless it says otherwise, in unix seconds."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)  # type: ignore[arg-type]  # any other type raises TypeError
        # Not before 1970: what is over is over, and the year 0 cannot be written as a date again.
        return max(0.0, (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (TypeError, ValueError, OverflowError):
        raise malformed("`expires` is no time") from None


def _count(value: object) -> int:
    if value is None:
        return 0
    if type(value) is int and 0 <= value <= _MOST_RETRIES:
        return value
    raise malformed("`retries` is no number of tries")
