"""Messages of our own making are what Celery's worker and the hub expect; those of Celery are understood."""

from __future__ import annotations

import json
from typing import Any

from celery import Celery
from kombu import Connection, Exchange, Queue
from kombu.transport import virtual

from dsf import wire
from dsf.ticks import iso


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
