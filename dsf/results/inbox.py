"""Validation of agents' messages in the results queue before Celery sees them.

Any holder of an agent's credential may push anything there (`dsf.wire` says what that could do). So only envelope and
id are taken from each; everything else is dropped, and the message is rebuilt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from dsf import keys, wire
from dsf.messages import INGEST_TASK, PACKING

#: Beside the Celery message: texts to put back into the queue if it is not finished, one per result.
ITEMS = "items"
_LONGEST_TEXT = 200


class Letter(NamedTuple):
    """One call of the ingest task, with one envelope."""

    #: JSON text of the envelope, unvalidated.
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
        """Read `item`, which is not trusted. `limit` is in bytes of an envelope.

        Raises MessageRejectedError (`malformed`) if it is not a call of the ingest task.
        """
        call = wire.Call.open(item, limit * PACKING)
        if call.task != INGEST_TASK:
            raise wire.malformed(f"not a call of {INGEST_TASK}")
        arguments, _ = call.arguments()
        if not arguments:
            raise wire.malformed("no envelope in the message")
        try:
            envelope = json.dumps(arguments[0])
        except RecursionError:
            raise wire.malformed("unreadable body: RecursionError") from None
        return cls(
            envelope=envelope,
            body=call.body,
            is_base64=call.is_base64,
            id=call.id,
            root_id=call.root_id,
            argsrepr=call.argsrepr,
            origin=call.origin,
            redelivered=call.redelivered,
        )

    def again(self) -> str:
        """The element to put back into the queue, marked as redelivered. It contains only validated texts: nothing that
        could be refused, or end a worker, the second time."""
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
        # As short as before: it must be within the limit the second time, too.
        return wire.packed(element)


def message_of(letters: Sequence[Letter]) -> dict[str, Any]:
    """One Celery message with the envelopes of all of these, at least one, as its arguments.

    They stay texts: parsed here, one could make the whole message unreadable, including others.
    """
    first = letters[0]
    alone = len(letters) == 1
    message = wire.message(
        INGEST_TASK,
        [letter.envelope for letter in letters],
        keys.RESULTS_QUEUE,
        task_id=first.id if alone else None,
        root_id=first.root_id if alone else None,
        argsrepr=first.argsrepr if alone else _listed(letters),
        origin=first.origin if alone else "",
        redelivered=any(letter.redelivered for letter in letters),
    )
    return message | {ITEMS: [letter.again() for letter in letters]}


def _listed(letters: Sequence[Letter]) -> str:
    """Flower's text for a group: the number, and as many of them as fit."""
    text = f"{len(letters)} results: " + ", ".join(letter.argsrepr for letter in letters)
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."
