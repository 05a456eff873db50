"""What agents push into the results queue, taken apart before Celery sees it.

Any holder of an agent's credential may push anything there (`dsf.wire` says what that could do). So only two
things are taken from each, its envelope and its id; everything else is dropped, and the message is made anew.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from dsf import keys, wire
from dsf.messages import INGEST_TASK, PACKING

#: Beside the message for Celery: what is put back into the queue if it cannot be finished, one text for each result.
ITEMS = "items"
_LONGEST_TEXT = 200


class Letter(NamedTuple):
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
        """Read `item`, which is not trusted. `limit` is in bytes of an envelope.

        Raises MessageRejectedError (`malformed`) when it is not a call of the ingest task.
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
        return wire.packed(element)


def message_of(letters: Sequence[Letter]) -> dict[str, Any]:
    """One Celery message with the envelopes of all of these, at least one, as its arguments.

    They stay texts: what is read from them as it arrives could make the whole message unreadable, that of others too.
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
    """What Flower shows of a group: how many, and as many of them as there is room for."""
    text = f"{len(letters)} results: " + ", ".join(letter.argsrepr for letter in letters)
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."
