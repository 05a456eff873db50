"""What agents push into the results queue, taken apart before Celery sees it.

Everybody who holds an agent's credential may push anything there. A Celery message can carry more than a task: a chain
or callbacks that the worker would send on with the hub's rights, a time at which to run that keeps it in memory, a
place to which it is put back; and one that is no message at all ends a worker. So only two things are taken from each,
its envelope and its id; everything else is dropped, and the message is made anew.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dsf import keys
from dsf.errors import MessageRejectedError
from dsf.messages import INGEST_TASK, PACKING

#: Beside the message for Celery: what is put back into the queue if it cannot be finished, one text for each result.
ITEMS = "items"
_LONGEST_TEXT = 200


@dataclass(frozen=True)
class Letter:
    """One call of the ingest task, with one envelope."""

    #: JSON text of the envelope, which may be anything.
    envelope: str
    #: The body that holds it, and whether that is base64.
    body: str
    is_base64: bool
    id: str
    root_id: str
    argsrepr: str
    origin: str
    redelivered: bool

    @classmethod
    def open(cls, item: bytes, limit: int) -> Letter:
        """Read `item`, pushed by anybody. `limit` is in bytes of an envelope.

        Raises MessageRejectedError (`malformed`) when it is not a call of the ingest task.
        """
        if len(item) > limit * PACKING:
            raise MessageRejectedError("malformed", f"message of {len(item)} bytes, the limit is {limit * PACKING}")
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
        is_base64 = properties.get("body_encoding") == "base64"
        return cls(
            envelope=_envelope(body, is_base64),
            body=body,
            is_base64=is_base64,
            id=task_id,
            root_id=_text(headers.get("root_id")) or task_id,
            argsrepr=_text(headers.get("argsrepr")),
            origin=_text(headers.get("origin")),
            redelivered=isinstance(delivery, dict) and delivery.get("redelivered") is True,
        )

    def again(self) -> str:
        """What to put back into the queue, marked as coming again. Of what was pushed only texts that were looked at
        are in it: nothing that could be refused, or end a worker, at the second look.
        """
        element = {
            "headers": {
                "task": INGEST_TASK,
                "id": self.id,
                "root_id": self.root_id,
                "argsrepr": self.argsrepr,
                "origin": self.origin,
            },
            "properties": {
                "body_encoding": "base64" if self.is_base64 else None,
                "delivery_info": {"redelivered": True},
            },
            "body": self.body,
        }
        # As short as it came: it must be within the limit at the second look, too.
        return json.dumps(element, ensure_ascii=False, separators=(",", ":"))


def message_of(letters: Sequence[Letter]) -> dict[str, Any]:
    """One Celery message with the envelopes of all of these, at least one, as its arguments.

    They stay texts: what is read from them as it arrives could make the whole message unreadable, that of others too.
    """
    first = letters[0]
    alone = len(letters) == 1
    task_id = first.id if alone else str(uuid.uuid4())
    return {
        "body": json.dumps([[letter.envelope for letter in letters], {}, {}]),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {
            "lang": "py",
            "task": INGEST_TASK,
            "id": task_id,
            "root_id": first.root_id if alone else task_id,
            "parent_id": None,
            "argsrepr": first.argsrepr if alone else _listed(letters),
            "kwargsrepr": "{}",
            "origin": first.origin if alone else "",
            "retries": 0,
        },
        "properties": {
            "correlation_id": task_id,
            "delivery_mode": 2,
            "delivery_info": {
                "exchange": "",
                "routing_key": keys.RESULTS_QUEUE,
                "redelivered": any(letter.redelivered for letter in letters),
            },
            "priority": 0,
            "delivery_tag": str(uuid.uuid4()),
        },
        ITEMS: [letter.again() for letter in letters],
    }


def _listed(letters: Sequence[Letter]) -> str:
    """What Flower shows of a group: how many, and as many of them as there is room for."""
    text = f"{len(letters)} results: " + ", ".join(letter.argsrepr for letter in letters)
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."


def _envelope(body: str, is_base64: bool) -> str:
    """The first argument in a message's body."""
    try:
        text = base64.b64decode(body, validate=True) if is_base64 else body.encode()
        parts = json.loads(text)
        arguments = parts[0] if isinstance(parts, list) and parts else None
        if not (isinstance(arguments, list) and arguments):
            raise MessageRejectedError("malformed", "no envelope in the message")
        return json.dumps(arguments[0])
    except (ValueError, binascii.Error, RecursionError) as error:
        raise MessageRejectedError("malformed", f"unreadable body: {type(error).__name__}") from None


def _text(value: object) -> str:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""
