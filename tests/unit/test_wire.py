"""Messages of our own making are what Celery's worker and the hub expect; those of Celery are understood."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Exchange, Queue
from kombu.transport import virtual

from dsf import keys, wire
from dsf.errors import MessageRejectedError
from dsf.messages import INGEST_TASK, Result, derive_key, sign, verify
from dsf.results import inbox
from dsf.ticks import iso

MASTER = bytes(range(32))


def test_a_message_says_what_celery_would_say() -> None:
    expires = iso(4102444800.0)
    text = wire.call(
        "dsf.score",
        ("s", "r"),
        "spoke.c",
        argsrepr="('s', 'r')",
        root_id="root",
        parent_id="parent",
        expires=expires,
    )
    ours = json.loads(text)
    theirs = _by_celery(expires)
    for part in ("content-type", "content-encoding"):
        assert ours[part] == theirs[part]
    assert json.loads(ours["body"]) == json.loads(theirs["body"])
    for name in (
        *("lang", "task", "expires", "retries", "root_id", "parent_id", "argsrepr", "kwargsrepr"),
        "ignore_result",
    ):
        assert ours["headers"][name] == theirs["headers"][name]
    assert ours["properties"]["delivery_info"] == theirs["properties"]["delivery_info"]
    assert set(ours["properties"]) <= set(theirs["properties"])
    assert len(text) < len(json.dumps(theirs))


def test_what_celery_sends_can_be_read() -> None:
    expires = iso(4102444800.0)
    call = wire.Call.open(json.dumps(_by_celery(expires)).encode(), 10_000)
    assert (call.task, call.arguments()) == ("dsf.score", (["s", "r"], {}))
    assert (call.root_id, call.parent_id, call.expires, call.retries) == ("root", "parent", 4102444800.0, 0)


@pytest.mark.parametrize("text", ["東", "é", "a", '"'])
def test_results_in_any_script_are_not_much_longer_as_messages(text: str) -> None:
    item, body = _sent(text * 100)
    least = len(body.encode())
    # A quote is escaped once in the result and twice more as it is packed.
    assert len(item) < least * (4.5 if text == '"' else 1.3)


def test_half_a_character_travels() -> None:
    item, _ = _sent("\ud800", count=1)
    envelope = json.loads(inbox.Letter.open(item, 10_000).envelope)
    with pytest.raises(MessageRejectedError) as refused:
        verify(envelope, MASTER, limit=10_000)
    assert refused.value.reason == "malformed"


def _sent(label: str, count: int = 1000) -> tuple[bytes, str]:
    """The message with a result, and the body of its envelope; the hub can read it."""
    results = [({"meta": f"{label}{i}", "node": f"node-{i}"}, float(i)) for i in range(count)]
    # As an agent of somebody else's making would send it: nothing is cleaned.
    result = Result.model_construct(
        cluster="c1", scorer="s", run="1799999999000-0123abcd", at=1.0, outcome="ok", results=results
    )
    envelope = sign(result, derive_key(MASTER, "c1", 1))
    item = wire.call(INGEST_TASK, (envelope,), keys.RESULTS_QUEUE, argsrepr="x")
    assert json.loads(inbox.Letter.open(item, len(item)).envelope) == envelope
    return item, envelope["body"]


def _by_celery(expires: str) -> dict[str, Any]:
    pushed: list[dict[str, Any]] = []

    class Recorder(virtual.Channel):
        def _put(self, queue: str, message: dict[str, Any], **_: object) -> None:
            assert queue == "spoke.c"
            pushed.append(message)

    class Transport(virtual.Transport):
        Channel = Recorder

    queue = Queue("spoke.c", Exchange("spoke.c", no_declare=True), routing_key="spoke.c", no_declare=True)
    with (
        Celery("test", set_as_current=False) as app,
        Connection(transport=Transport, transport_options={"body_encoding": None}) as connection,
    ):
        app.conf.task_queues = [queue]
        app.send_task(
            "dsf.score",
            args=("s", "r"),
            argsrepr="('s', 'r')",
            root_id="root",
            parent_id="parent",
            expires=expires,
            ignore_result=True,
            queue="spoke.c",
            producer=app.amqp.Producer(connection, auto_declare=False),
        )
    return pushed[0]
