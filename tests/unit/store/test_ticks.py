"""The wire message of a tick."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Exchange, Queue
from kombu.transport import virtual

from dsf.messages import make_run_id
from dsf.store.ticks import RUN_SLACK, compute_run_deadline, make_tick_message

EXPIRES = 1_795_000_030.25
RUN = make_run_id(1_795_000_000.25)


def test_tick_carries_only_names() -> None:
    message = json.loads(make_tick_message("worker01", "sample-scorer", RUN, EXPIRES))
    args, kwargs, embedded = json.loads(message["body"])
    assert (args, kwargs) == (["sample-scorer", RUN, EXPIRES], {})
    assert not any(embedded.values())
    headers = message["headers"]
    assert headers["task"] == "dsf.cycle"
    # The agent compares the third argument with the hub's clock; Celery would use the agent's clock.
    assert headers["expires"] is None
    assert headers["argsrepr"] == f"('sample-scorer', '{RUN}', {EXPIRES:.3f})"
    assert headers["id"] == headers["root_id"] == message["properties"]["correlation_id"]
    assert message["properties"]["delivery_info"] == {"exchange": "", "routing_key": "spoke.worker01"}


def test_tick_equals_a_message_of_celery() -> None:
    text = make_tick_message("worker01", "sample-scorer", RUN, EXPIRES)
    message, celery_message = json.loads(text), _by_celery()
    for part in ("content-type", "content-encoding"):
        assert message[part] == celery_message[part]
    assert json.loads(message["body"]) == json.loads(celery_message["body"])
    for name in ("lang", "task", "expires", "retries", "parent_id", "kwargsrepr", "ignore_result"):
        assert message["headers"][name] == celery_message["headers"][name]
    assert (
        celery_message["headers"]["root_id"]
        == celery_message["headers"]["id"]
        == celery_message["properties"]["correlation_id"]
    )
    assert message["properties"]["delivery_info"] == celery_message["properties"]["delivery_info"]
    assert set(message["properties"]) <= set(celery_message["properties"])
    assert len(text) < len(json.dumps(celery_message))


def test_tick_is_small() -> None:
    assert len(make_tick_message("worker01", "sample-scorer", RUN, EXPIRES)) < 900


def test_every_tick_has_unique_ids() -> None:
    first, second = (json.loads(make_tick_message("c1", "s", RUN, EXPIRES)) for _ in range(2))
    assert first["headers"]["id"] != second["headers"]["id"]
    assert first["properties"]["delivery_tag"] != second["properties"]["delivery_tag"]


@pytest.mark.parametrize(("cluster", "scorer"), [('c"1', "s"), ("c1", "<run>"), ("", "s"), ("c1", "S")])
def test_names_that_are_none_are_refused(cluster: str, scorer: str) -> None:
    with pytest.raises(ValueError, match="not the names"):
        make_tick_message(cluster, scorer, RUN, EXPIRES)


def test_stage_starting_at_the_last_moment_still_counts() -> None:
    # The limit is two time-outs of 30 s, the default of spec.execution.timeoutSeconds.
    assert compute_run_deadline(EXPIRES) == EXPIRES + RUN_SLACK
    assert RUN_SLACK >= 60


def _by_celery() -> dict[str, Any]:
    pushed: list[dict[str, Any]] = []

    class Recorder(virtual.Channel):
        def _put(self, queue: str, message: dict[str, Any], **_: object) -> None:
            assert queue == "spoke.worker01"
            pushed.append(message)

    class Transport(virtual.Transport):
        Channel = Recorder

    queue = Queue(
        "spoke.worker01", Exchange("spoke.worker01", no_declare=True), routing_key="spoke.worker01", no_declare=True
    )
    with (
        Celery("test", set_as_current=False) as app,
        Connection(transport=Transport, transport_options={"body_encoding": None}) as connection,
    ):
        app.conf.task_queues = [queue]
        app.send_task(
            "dsf.cycle",
            args=("sample-scorer", RUN, EXPIRES),
            ignore_result=True,
            queue="spoke.worker01",
            producer=app.amqp.Producer(connection, auto_declare=False),
        )
    return pushed[0]
