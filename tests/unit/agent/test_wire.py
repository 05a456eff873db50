"""Messages of our own making are what Celery's worker and the hub expect."""

from __future__ import annotations

import json

from celery import Celery
from kombu import Connection, Exchange, Queue
from kombu.transport import virtual

from dsf.agent import wire
from dsf.ticks import chain_signatures


def test_a_message_says_what_celery_would_say() -> None:
    chain = chain_signatures("c", "s", "r", 4102444800.0)
    step = chain.pop()
    text = wire.call(
        "dsf.score",
        ("s", "r"),
        "spoke.c",
        argsrepr="('s', 'r')",
        root_id="root",
        parent_id="parent",
        expires=step.options["expires"],
        chain=chain,
    )
    ours = json.loads(text)
    theirs = _by_celery(chain, step.options["expires"])
    for part in ("content-type", "content-encoding"):
        assert ours[part] == theirs[part]
    assert json.loads(ours["body"]) == json.loads(theirs["body"])
    for name in ("lang", "task", "expires", "root_id", "parent_id", "argsrepr", "kwargsrepr", "ignore_result"):
        assert ours["headers"][name] == theirs["headers"][name]
    assert ours["properties"]["delivery_info"] == theirs["properties"]["delivery_info"]
    assert set(ours["properties"]) <= set(theirs["properties"])
    assert len(text) < len(json.dumps(theirs))


def _by_celery(chain: list[object], expires: str) -> dict[str, object]:
    pushed: list[dict[str, object]] = []

    class Recorder(virtual.Channel):
        def _put(self, queue: str, message: dict[str, object], **_: object) -> None:
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
            chain=chain,
            ignore_result=True,
            queue="spoke.c",
            producer=app.amqp.Producer(connection, auto_declare=False),
        )
    return pushed[0]
